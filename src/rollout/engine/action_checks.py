"""Whether what a policy returned can be an action. Every fault is told before a simulator sees it."""

from __future__ import annotations

from typing import Any

import numpy as np

from rollout.spaces import Box, Choice, Fields, OneOf, Repeated, Space, Text

__all__ = ["as_chunk", "cast", "check_nested", "check_numbers"]


def as_chunk(array: np.ndarray, shape: tuple[int, ...]) -> np.ndarray:
    """A single action, or (chunk_size, 1) for a `Discrete` space, as (chunk_size, *shape). Raises `ValueError`."""
    if array.shape == shape:
        return array[np.newaxis]
    if shape == () and array.ndim == 2 and array.shape[1] == 1 and len(array):
        return array[:, 0]
    raise ValueError(f"shape {array.shape} instead of (chunk_size, {', '.join(map(str, shape))})")


def check_numbers(array: np.ndarray, dtype: np.dtype) -> None:
    """Raise `ValueError` where `array` holds something else."""
    if array.dtype.kind not in "biuf":
        raise ValueError(f"{array.dtype} actions, which are no numbers, for a space of {dtype}")


def cast(array: np.ndarray, dtype: np.dtype) -> np.ndarray:
    """The numbers of `array` in the action space's `dtype`; what is too large for a float becomes infinite.

    Raises `ValueError` where the cast would make others of them.
    """
    if dtype.kind in "iu":
        _check_whole(array, dtype)
    with np.errstate(over="ignore"):
        return array.astype(dtype)


def _check_whole(array: np.ndarray, dtype: np.dtype) -> None:
    if array.dtype.kind == "f" and (array != np.rint(array)).any():  # NaN too
        raise ValueError(f"{array.dtype} actions that are not whole numbers, for a space of {dtype}")
    limits = np.iinfo(dtype)
    if array.dtype.kind != "b" and ((array < limits.min) | (array > limits.max)).any():
        raise ValueError(f"actions that do not fit into {dtype}: {array.min()} to {array.max()}")


def check_nested(space: Space, value: Any) -> None:
    """Raise `ValueError` where `value` has not the structure and shapes of `space`, or a number that is not finite.

    Whether numbers are within a space's bounds is the simulator's business, as for plain actions.
    """
    match space:
        case Box() | Choice():
            _check_numbers(space, value)
        case Text():
            _require(isinstance(value, str), space, value)
        case Fields(names=None):
            _require(isinstance(value, tuple | list) and len(value) == len(space.spaces), space, value)
            for part, item in zip(space.spaces, value, strict=True):
                check_nested(part, item)
        case Fields():
            names = space.names or ()
            _require(isinstance(value, dict) and set(value) == set(names), space, value)
            for name, part in zip(names, space.spaces, strict=True):
                check_nested(part, value[name])
        case Repeated(stack=False):
            _require(isinstance(value, tuple | list), space, value)
            for item in value:
                check_nested(space.space, item)
        case OneOf():
            _require(isinstance(value, tuple | list) and len(value) == 2, space, value)
            _require(int(value[0]) in range(len(space.spaces)), space, value)
            check_nested(space.spaces[int(value[0])], value[1])
        case _:  # graphs and stacked sequences: arrays of any length
            return


def _check_numbers(space: Box | Choice, value: Any) -> None:
    array = np.asarray(value)
    if array.shape != space.shape:
        raise ValueError(f"a part of an action of shape {array.shape} instead of {space.shape}")
    check_numbers(array, np.dtype(space.dtype))
    if not np.isfinite(cast(array, np.dtype(space.dtype))).all():
        raise ValueError("an action that is not finite")


def _require(fits: bool, space: Space, value: Any) -> None:
    if not fits:
        text = repr(value)
        shown = text if len(text) <= 80 else f"{text[:80]}…"
        raise ValueError(f"{shown} as a part of an action that is a {_name(space)}")


def _name(space: Space) -> str:
    match space:
        case Fields(names=None):
            return f"tuple of {len(space.spaces)}"
        case Fields():
            return f"dict of {', '.join(space.names or ())}"
        case Text():
            return "text"
        case _:
            return type(space).__name__
