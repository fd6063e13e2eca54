"""Waiting requests, and the rule that says when they become a batch. No loop, no thread, no clock."""

from __future__ import annotations

from collections import deque
from typing import Generic, TypeVar

__all__ = ["BatchQueue"]

T = TypeVar("T")


class BatchQueue(Generic[T]):
    """First come, first served, up to `max_batch` at once; greedy unless `max_wait_s` says otherwise."""

    def __init__(self, max_batch: int, max_wait_s: float = 0.0) -> None:
        self.max_batch = max_batch  # may shrink while requests wait
        self._max_wait_s = max_wait_s
        self._waiting: deque[tuple[float, T]] = deque()

    def __len__(self) -> int:
        return len(self._waiting)

    def put(self, item: T, now: float) -> None:
        """Add a request that came at `now` (seconds, any clock)."""
        self._waiting.append((now, item))

    def take(self, now: float, may_come: int) -> list[T]:
        """The next batch, oldest first; empty where it is better to wait.

        `may_come` is how many further requests can arrive before one of these is answered: where it is 0, waiting
        would be for nothing.
        """
        if not self._waiting or now < self._due(may_come):
            return []
        count = min(len(self._waiting), self.max_batch)
        return [self._waiting.popleft()[1] for _ in range(count)]

    def due_in(self, now: float, may_come: int) -> float:
        """Seconds until `take` would give a batch."""
        return max(0.0, self._due(may_come) - now)

    def _due(self, may_come: int) -> float:
        oldest = self._waiting[0][0]
        full = len(self._waiting) >= self.max_batch
        return oldest if full or may_come <= 0 else oldest + self._max_wait_s
