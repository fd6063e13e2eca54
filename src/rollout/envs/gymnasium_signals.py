"""What an environment says of a step beside its observation: reward, endings, success, in all forms that are met."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from contextlib import suppress
from math import inf
from types import MappingProxyType
from typing import Any, Final

import numpy as np

from rollout.envs.remarks import remark

__all__ = ["flag", "one_reward", "plain_info", "reported", "success"]

UNREADABLE: Final[Mapping[str, Any]] = MappingProxyType({})


def plain_info(info: Any, name: str = "info") -> Mapping[str, Any]:
    """`info` as a plain dict. Where it is none, and cannot become one, it is `UNREADABLE`, and the user is told."""
    if type(info) is dict:
        return info
    kind = type(info).__name__
    if not isinstance(info, Mapping):
        remark(
            f"the environment's {name} is no dict but of type {kind}: dropped, with what it may say of success"
        )
        return UNREADABLE
    try:
        return dict(info)
    except Exception as exc:  # its own code
        remark(f"the environment's {name}, of type {kind}, cannot be read ({type(exc).__name__}): dropped")
        return UNREADABLE


def reported(info: Mapping[str, Any], *, ended: bool) -> tuple[bool | None, bool]:
    """What `plain_info` of a step says of success, and whether some of it could not be read. Raises `ValueError`.

    `final_info` comes first, at the step that ends the episode alone: at any other, it is of an episode before.
    """
    if not info:
        return None, info is UNREADABLE
    if not ended or (final := info.get("final_info")) is None:
        return success(info), False
    final = plain_info(final, "final_info")
    told = success(final)
    return success(info) if told is None else told, final is UNREADABLE


def success(info: Mapping[str, Any]) -> bool | None:
    """`is_success`, else `success`. Raises `ValueError` where that is no truth value."""
    for name in ("is_success", "success"):
        if (value := info.get(name)) is not None:
            return flag(value, name)
    return None


def flag(value: Any, name: str) -> bool | None:
    """One truth value; None for None, and for NaN, which Python takes for true. Raises `ValueError`."""
    if value is None:
        return None
    number = _one_number(value, name)
    return None if number != number else bool(number)  # noqa: PLR0124


def one_reward(value: Any) -> float:
    """The reward as a float; infinite where it is an integer beyond all floats. Raises `ValueError`."""
    number = _one_number(value, "reward")
    try:
        return float(number)
    except OverflowError:
        return inf if number > 0 else -inf


def _one_number(value: Any, name: str) -> Any:
    """The number in a scalar, a 0-d array or one of one element. Raises `ValueError` naming what it is instead."""
    if isinstance(value, float | int):
        return value
    array = None
    with suppress(Exception):  # a ragged list, a tensor that needs its gradient, an object's own code
        array = np.asarray(value)
    if array is not None and array.size != 1:
        raise ValueError(f"the environment's {name} has shape {array.shape}, but must be one value")
    if array is None or array.dtype.kind in "buifO":
        number = value if array is None else array.item()
        if isinstance(number, float | int):
            return number
        # A Decimal has a float, and what is no number has none. PyTorch warns of a tensor that needs its gradient.
        with suppress(Exception), warnings.catch_warnings(action="ignore"):
            if not isinstance(number, str | bytes):
                return float(number)
    raise ValueError(f"the environment's {name} is no number but {_shown(value)}")


def _shown(value: Any) -> str:
    try:
        text = repr(value)
    except Exception:
        return f"a {type(value).__name__} that cannot be printed"
    return text if len(text) <= 80 else f"{text[:80]}…"
