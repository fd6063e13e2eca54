"""What an environment says of a step beside its observation: reward, endings, success, in all forms that are met."""

from __future__ import annotations

from collections.abc import Mapping
from math import inf
from typing import Any

import numpy as np

from rollout.envs.remarks import remark

__all__ = ["flag", "one_reward", "plain_info", "success"]


def plain_info(info: Any) -> Mapping[str, Any]:
    """`info` as a plain dict. Where it is none, and cannot become one, it is empty, and the user is told."""
    if type(info) is dict:
        return info
    kind = type(info).__name__
    if not isinstance(info, Mapping):
        remark(
            f"the environment's info is no dict but of type {kind}: dropped, with what it may say of success"
        )
        return {}
    try:
        return dict(info)
    except Exception as exc:  # its own code
        remark(f"the environment's info, of type {kind}, cannot be read ({type(exc).__name__}): dropped")
        return {}


def success(info: Mapping[str, Any]) -> bool | None:
    """`is_success`, else `success`, first of `final_info`. Raises `ValueError` where that is no truth value."""
    final = info.get("final_info")
    for report in (plain_info(final), info) if isinstance(final, dict) else (info,):
        for name in ("is_success", "success"):
            if (value := report.get(name)) is not None:
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
    try:
        array = np.asarray(value)
    except Exception as exc:  # a ragged list, an object's own code
        raise ValueError(f"the environment's {name} is no number but {_shown(value)}") from exc
    if array.size != 1:
        raise ValueError(f"the environment's {name} has shape {array.shape}, but must be one value")
    if array.dtype.kind not in "buif":
        raise ValueError(f"the environment's {name} is no number but {_shown(value)}")
    return array.item()


def _shown(value: Any) -> str:
    try:
        text = repr(value)
    except Exception:
        return f"a {type(value).__name__} that cannot be printed"
    return text if len(text) <= 80 else f"{text[:80]}…"
