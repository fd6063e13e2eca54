"""From what a policy returned to what a simulator executes, and the record of what it did execute.

Plain bookkeeping of one episode: checks that a chunk is one, averages, clips, cuts.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from rollout.engine.ensemble import Ensemble
from rollout.engine.execution import Execution
from rollout.spaces import Box, Space
from rollout.values import Array, Items, Value, pack, pack_array, unpack_array

__all__ = ["EpisodeActions"]


class EpisodeActions:
    """One attempt's actions."""

    def __init__(self, space: Space, execution: Execution) -> None:
        self.clipped = 0  # executed actions that were clipped
        self._shape: tuple[int, ...] | None = getattr(space, "shape", None)  # None: a nested action space
        self._dtype = np.dtype(getattr(space, "dtype", "f4"))
        self._ndim = 1 + len(self._shape or ())
        self._first = execution.n_action_steps
        decay = execution.temporal_ensemble
        self._ensemble = None if decay is None else Ensemble(decay)
        self._bounds = _bounds(space) if execution.clip else None
        self._sent: np.ndarray | list[Any] = []
        self._moved: np.ndarray | None = None  # (chunk_size,) bool: which of those sent were clipped
        self._executed: list[np.ndarray] = []
        self._nested: list[Value] = []

    def take(self, chunk: Any) -> Array | Items:
        """Check what the policy returned, and give what is sent of it. Raises `TypeError` or `ValueError`."""
        if self._shape is None:
            return self._take_nested(chunk)
        array = np.asarray(chunk)
        if array.ndim != self._ndim or array.shape[1:] != self._shape or not len(array):
            array = _as_chunk(array, self._shape)
        if array.dtype is not self._dtype:
            _check_cast(array, self._dtype)
        if array.dtype.kind == "f" and not np.isfinite(array).all():
            raise ValueError("an action that is not finite")
        if self._ensemble is not None:
            array = self._ensemble.add(np.asarray(array, self._dtype))
        # A copy: the policy may reuse its buffer, and the record keeps what was executed.
        sent = np.array(array[: self._first], self._dtype, order="C")
        if self._bounds is not None:
            sent = self._clip(sent, *self._bounds)
        self._sent = sent
        return pack_array(sent)

    def executed(self, count: int) -> None:
        """The simulator executed the first `count` of those that were sent."""
        if isinstance(self._sent, np.ndarray):
            self._executed.append(self._sent[:count])
        else:
            self._nested += self._sent[:count]
        if self._moved is not None:
            self.clipped += int(self._moved[:count].sum())

    @property
    def value(self) -> Value:
        """All executed actions, leading axis: steps."""
        if self._shape is None:
            return Items(tuple(self._nested))
        empty = np.zeros((0, *self._shape), self._dtype)
        return pack_array(np.concatenate(self._executed) if self._executed else empty)

    def _take_nested(self, chunk: Any) -> Items:
        if self._ensemble is not None:
            raise ValueError("nested actions, which have no mean: temporal ensembling is for floats")
        packed = tuple(pack(action) for action in chunk)[: self._first]
        if not packed:
            raise ValueError("an empty chunk")
        self._sent = list(packed)
        return Items(packed)

    def _clip(self, sent: np.ndarray, low: np.ndarray, high: np.ndarray) -> np.ndarray:
        inside: np.ndarray = np.clip(sent, low, high)
        self._moved = (inside != sent).reshape(len(sent), -1).any(1)
        return inside


def _bounds(space: Space) -> tuple[np.ndarray, np.ndarray] | None:
    """Only a `Box` has bounds between which every value is an action."""
    return (unpack_array(space.low), unpack_array(space.high)) if isinstance(space, Box) else None


def _as_chunk(array: np.ndarray, shape: tuple[int, ...]) -> np.ndarray:
    """A single action, or (chunk_size, 1) for a `Discrete` space, as (chunk_size, *shape). Raises `ValueError`."""
    if array.shape == shape:
        return array[np.newaxis]
    if shape == () and array.ndim == 2 and array.shape[1] == 1 and len(array):
        return array[:, 0]
    raise ValueError(f"shape {array.shape} instead of (chunk_size, {', '.join(map(str, shape))})")


def _check_cast(array: np.ndarray, dtype: np.dtype) -> None:
    """Raise `ValueError` where casting `array` to the action space's `dtype` would lose its meaning."""
    if dtype.kind in "iu" and array.dtype.kind == "f" and (array != np.rint(array)).any():
        raise ValueError(f"{array.dtype} actions that are not whole numbers, for a space of {dtype}")
