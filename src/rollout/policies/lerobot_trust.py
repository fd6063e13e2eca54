"""What a LeRobot checkpoint may not do without `--trust-remote-code`: have Python run that it brings along or names.

A checkpoint is data (JSON, safetensors), with two ways out of that in LeRobot 0.6: a processor's step may be named by
the path of any class, which is imported and called; and tokenizers and backbones are loaded from any repository that
the checkpoint names, with `trust_remote_code=True` in many policies, which runs the repository's own files.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path
from typing import Any, Final

from rollout.errors import UsageError
from rollout.policies.lerobot_files import read_json

__all__ = ["check_steps", "without_remote_code"]

FLAG: Final = "read it, then add --trust-remote-code"

RUNNERS: Final = ("get_cached_module_file", "get_class_in_module")
"""The functions of `transformers.dynamic_module_utils` that every Python file of a repository passes through: fetching
it (which imports what it imports), and running it."""

_refused: ContextVar[list[str] | None] = ContextVar("refused", default=None)
"""What was refused so far, where remote code is refused at all. A context variable: other threads may trust theirs."""


def check_steps(file: Path, *, trusted: bool) -> None:
    """Raise `UsageError` where a processor's `file` has a step that is none of LeRobot's, unless that is trusted.

    A step with a `registry_name` was registered by a module that is imported already; one with a `class` is imported by
    LeRobot. Within LeRobot that must be a step, whoever is trusted: other callables open files and start processes.
    """
    steps = read_json(file).get("steps", [])
    if not isinstance(steps, list) or not all(isinstance(step, dict) for step in steps):
        raise UsageError(f"{file} holds no list of steps")
    for step in steps:
        path = step.get("class")
        if "registry_name" in step or path is None:
            continue
        if isinstance(path, str) and path.startswith("lerobot."):
            if not _is_step(path):
                raise UsageError(f"{file} names {path!r} as a step, which is none of LeRobot's")
        elif not trusted:
            raise UsageError(f"{file} would have {path!r} imported and run, which is not LeRobot's: {FLAG}")


def _is_step(path: str) -> bool:
    from lerobot.processor import ProcessorStep

    module, _, name = path.rpartition(".")
    try:
        found = getattr(importlib.import_module(module), name, None)
    except ImportError:
        return False
    return isinstance(found, type) and issubclass(found, ProcessorStep)


@contextmanager
def without_remote_code(*, trusted: bool) -> Iterator[None]:
    """Refuse, in this thread, to run Python files of repositories and folders, unless they are `trusted`.

    Raises `UsageError` at the end where something was refused, whatever LeRobot made of it.
    """
    if trusted:
        yield
        return
    _watch()
    refused: list[str] = []
    token = _refused.set(refused)
    try:
        yield
    except Exception as exc:
        if refused:
            raise UsageError(refused[0]) from exc
        raise
    finally:
        _refused.reset(token)
    if refused:
        raise UsageError(refused[0])


def _watch() -> None:
    """Put the check in front of `RUNNERS`, once, also where another module of transformers imported them by name."""
    try:
        home = importlib.import_module("transformers.dynamic_module_utils")
    except ImportError:  # LeRobot's smaller policies do without
        return
    for name in RUNNERS:
        runner = getattr(home, name, None)
        if runner is None:
            raise UsageError(
                f"this version of transformers has no {name}, so nothing can be refused to it: {FLAG}"
            )
        if not isinstance(runner, _Checked):
            for module in _modules_of("transformers"):
                if vars(module).get(name) is runner:
                    setattr(module, name, _Checked(runner))


class _Checked:
    """One of `RUNNERS`, with the check in front of it."""

    def __init__(self, runner: Callable[..., Any]) -> None:
        self._runner = runner

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        refused = _refused.get()
        if refused is None:
            return self._runner(*args, **kwargs)
        what = [str(each) for each in (*args, *kwargs.values()) if isinstance(each, str | Path)][:2]
        refused.append(f"it would run Python that came with it ({' of '.join(reversed(what))}): {FLAG}")
        raise UsageError(refused[-1])


def _modules_of(package: str) -> list[Any]:
    return [
        module
        for name, module in list(sys.modules.items())
        if f"{name}.".startswith(f"{package}.") and module
    ]
