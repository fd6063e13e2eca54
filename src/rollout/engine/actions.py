"""From what a policy returned to what a simulator executes, and the record of what it did execute.

Plain bookkeeping of one episode: checks that a chunk is one, averages, clips, cuts.
"""

from __future__ import annotations

from math import isfinite, prod
from typing import Any

import numpy as np

from rollout.engine.action_checks import as_chunk, cast, check_nested, check_numbers
from rollout.engine.ensemble import Ensemble
from rollout.engine.execution import Execution
from rollout.spaces import Box, Space
from rollout.values import Array, Items, Value, pack, unpack_array

__all__ = ["EpisodeActions"]


class EpisodeActions:
    """One attempt's actions."""

    def __init__(self, space: Space, execution: Execution) -> None:
        self.clipped = 0  # executed actions that were clipped
        self._shape: tuple[int, ...] | None = getattr(space, "shape", None)  # None: a nested action space
        self._dtype = np.dtype(getattr(space, "dtype", "f4"))
        self._dtype_name = self._dtype.str  # NumPy formats it anew each time, for 1 us
        self._floats = self._dtype.kind == "f"
        self._ndim = 1 + len(self._shape or ())
        self._first = execution.n_action_steps
        decay = execution.temporal_ensemble
        self._ensemble = None if decay is None else Ensemble(decay)
        self._clips, self._space = execution.clip, space
        self._bounds = _bounds(space) if execution.clip else None
        self._step_bytes = self._dtype.itemsize * prod(self._shape or ())
        self._sent = b""  # arrays that were sent last
        self._moved: np.ndarray | None = None  # (chunk_size,) bool: which of those sent were clipped
        self._executed: list[bytes] = []
        self._n_executed = 0
        self._nested_sent: list[Value] = []
        self._nested: list[Value] = []
        self.n_sent = 0  # how many actions the simulator was given last

    def take(self, chunk: Any) -> Array | Items:
        """Check what the policy returned, and give what is sent of it. Raises `TypeError` or `ValueError`."""
        if self._shape is None:
            return self._take_nested(chunk)
        array = np.asarray(chunk)
        if array.ndim != self._ndim or array.shape[1:] != self._shape or not len(array):
            array = as_chunk(array, self._shape)
        if array.dtype is not self._dtype:
            check_numbers(array, self._dtype)
        if self._ensemble is not None:
            array = self._ensemble.add(np.asarray(array, self._dtype))
        array = array[: self._first]
        if self._bounds is not None:
            array = self._clip(array, *self._bounds)
        if array.dtype is not self._dtype:
            array = cast(array, self._dtype)
        # A sum of squares tells of most chunks in a third of the time that they are finite; it may be infinite itself.
        if self._floats and not (isfinite(np.vdot(array, array)) or np.isfinite(array).all()):
            raise ValueError("an action that is not finite")
        # A copy: the policy may reuse its buffer, and the record keeps what was executed.
        self._sent, self.n_sent = array.tobytes(), len(array)
        return Array(self._dtype_name, array.shape, memoryview(self._sent))

    def executed(self, count: int) -> None:
        """The simulator executed the first `count` of those that were sent."""
        self._n_executed += count
        if self._shape is None:
            self._nested += self._nested_sent[:count]
        else:
            self._executed.append(self._sent[: count * self._step_bytes])
        if self._moved is not None:
            self.clipped += int(self._moved[:count].sum())

    @property
    def value(self) -> Value:
        """All executed actions, leading axis: steps."""
        if self._shape is None:
            return Items(tuple(self._nested))
        data = b"".join(self._executed)
        return Array(self._dtype_name, (self._n_executed, *self._shape), memoryview(data))

    def _take_nested(self, chunk: Any) -> Items:
        if self._ensemble is not None:
            raise ValueError("nested actions, which have no mean: temporal ensembling is for floats")
        if self._clips:
            raise ValueError("nested actions, which --clip-actions cannot clip")
        actions = list(chunk)[: self._first]
        if not actions:
            raise ValueError("an empty chunk")
        for action in actions:
            check_nested(self._space, action)
        packed = tuple(map(pack, actions))
        self._nested_sent, self.n_sent = list(packed), len(packed)
        return Items(packed)

    def _clip(self, array: np.ndarray, low: np.ndarray, high: np.ndarray) -> np.ndarray:
        """Before the cast, which would wrap whole numbers around. Infinite ones stay what they are: no action."""
        inside: np.ndarray = np.where(np.isfinite(array), np.clip(array, low, high), array)
        self._moved = (inside != array).reshape(len(array), -1).any(1)
        return inside


def _bounds(space: Space) -> tuple[np.ndarray, np.ndarray] | None:
    """Only a `Box` has bounds between which every value is an action."""
    return (unpack_array(space.low), unpack_array(space.high)) if isinstance(space, Box) else None
