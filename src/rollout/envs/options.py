"""The values of `--set`: text turned into a number, a word or a switch, or a line that says what is valid."""

from __future__ import annotations

from collections.abc import Mapping

from rollout.config import nearest
from rollout.errors import UsageError

__all__ = ["one_of", "switch", "whole_number"]


def whole_number(options: Mapping[str, str], name: str, default: int, *, least: int, most: int) -> int:
    """`options[name]` as an integer in `[least, most]`; `default` where not set. Raises `UsageError`."""
    text = options.get(name)
    if text is None:
        return default
    try:
        value = int(text)
    except ValueError:
        value = least - 1
    if not least <= value <= most:
        raise UsageError(f"--set {name}={text}: must be a whole number from {least} to {most}")
    return value


def one_of(options: Mapping[str, str], name: str, valid: tuple[str, ...]) -> str:
    """`options[name]`, one of `valid`; the first of them where it is not set. Raises `UsageError`."""
    text = options.get(name, valid[0])
    if text not in valid:
        raise UsageError(f"--set {name}={text}: must be one of {', '.join(valid)}{nearest(text, valid)}")
    return text


def switch(options: Mapping[str, str], name: str, *, default: bool) -> bool:
    """`options[name]`, `true` or `false`. Raises `UsageError`."""
    return one_of(options, name, ("true", "false") if default else ("false", "true")) == "true"
