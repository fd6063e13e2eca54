"""Gathers the decisions of all episodes into batches, and runs the policy in one dedicated thread.

Self-clocking: while a forward runs, the next batch gathers. `BatchQueue` decides, without a loop or a thread.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable, Sequence
from queue import SimpleQueue
from threading import Thread
from typing import Any, Generic, TypeVar

from rollout.display.base import Counters
from rollout.errors import PolicyError, RolloutError
from rollout.policies.base import Request

__all__ = ["BatchQueue", "Batcher"]

T = TypeVar("T")


class BatchQueue(Generic[T]):
    """Waiting requests, and the rule that says when they become a batch."""

    def __init__(self, max_batch: int, max_wait_s: float = 0.0) -> None:
        self._max_batch, self._max_wait_s = max_batch, max_wait_s
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
        count = min(len(self._waiting), self._max_batch)
        return [self._waiting.popleft()[1] for _ in range(count)]

    def due_in(self, now: float, may_come: int) -> float:
        """Seconds until `take` would give a batch."""
        return max(0.0, self._due(may_come) - now)

    def _due(self, may_come: int) -> float:
        oldest = self._waiting[0][0]
        full = len(self._waiting) >= self._max_batch
        return oldest if full or may_come <= 0 else oldest + self._max_wait_s


Pending = tuple[Request, "asyncio.Future[Any]"]


class Batcher:
    """The async shell: `await decide(request)`. A context manager that owns the policy's thread.

    With `inline`, the policy answers each request at once on the loop's own thread: `breakpoint()` works in it, and a
    policy that needs microseconds is spared the hand-over to a thread, which costs a hundred of them.
    """

    def __init__(
        self,
        infer: Callable[[Sequence[Request]], Sequence[Any]],
        counters: Counters,
        *,
        max_batch: int,
        max_wait_s: float = 0.0,
        inline: bool = False,
    ) -> None:
        self.active = 0  # episodes that may ask
        self._infer, self._counters, self._inline = infer, counters, inline
        self._queue: BatchQueue[Pending] = BatchQueue(max_batch, max_wait_s)
        self._loop = asyncio.get_running_loop()
        self._busy = self._scheduled = False
        self._timer: asyncio.TimerHandle | None = None
        self._jobs: SimpleQueue[list[Pending] | None] = SimpleQueue()

    def __enter__(self) -> Batcher:
        if not self._inline:
            # A daemon, and not joined: a forward may take seconds (or for ever), and Ctrl-C must not.
            Thread(target=self._serve, name="rollout-policy", daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._jobs.put(None)

    async def decide(self, request: Request) -> Any:
        """The policy's action chunk for `request`. Raises `PolicyError` where the policy failed."""
        if self._inline:
            return self._decide_now(request)
        future: asyncio.Future[Any] = self._loop.create_future()
        self._queue.put((request, future), time.monotonic())
        self._schedule()
        return await future

    def _schedule(self) -> None:
        # After this pass of the loop, so that all replies which are here already share the batch.
        if not self._busy and not self._scheduled:
            self._scheduled = True
            self._loop.call_soon(self._pump)

    def _pump(self) -> None:
        self._scheduled = False
        if self._busy or not len(self._queue):
            return
        now, may_come = time.monotonic(), self.active - len(self._queue)
        batch = self._queue.take(now, may_come)
        if not batch:
            if self._timer is None:
                self._timer = self._loop.call_later(self._queue.due_in(now, may_come), self._time_out)
            return
        self._busy = True
        self._jobs.put(batch)

    def _time_out(self) -> None:
        self._timer = None
        self._pump()

    def _serve(self) -> None:
        """The policy's thread."""
        while (batch := self._jobs.get()) is not None:
            outcome = self._forward([request for request, _ in batch])
            try:
                self._loop.call_soon_threadsafe(self._done, batch, *outcome)
            except RuntimeError:
                return  # the loop was closed while the policy ran

    def _decide_now(self, request: Request) -> Any:
        began = time.perf_counter()
        try:
            [chunk] = self._chunks([request])
        except Exception as exc:
            raise _blame([request], exc) from exc
        self._count(1, time.perf_counter() - began)
        return chunk

    def _forward(self, requests: list[Request]) -> tuple[Sequence[Any], BaseException | None, float]:
        began = time.perf_counter()
        try:
            chunks = self._chunks(requests)
        except BaseException as exc:
            return (), exc, time.perf_counter() - began
        return chunks, None, time.perf_counter() - began

    def _chunks(self, requests: list[Request]) -> Sequence[Any]:
        chunks = self._infer(requests)
        if len(chunks) != len(requests):
            raise PolicyError(f"the policy returned {len(chunks)} action chunks for {len(requests)} requests")
        return chunks

    def _done(
        self, batch: list[Pending], chunks: Sequence[Any], error: BaseException | None, seconds: float
    ) -> None:
        self._busy = False
        self._count(len(batch), seconds)
        blame = None if error is None else _blame([request for request, _ in batch], error)
        for index, (_, future) in enumerate(batch):
            if future.done():
                continue  # its episode was cancelled meanwhile
            if blame is not None:
                future.set_exception(blame)
            else:
                future.set_result(chunks[index])
        if len(self._queue):
            self._schedule()

    def _count(self, decisions: int, seconds: float) -> None:
        self._counters.batches += 1
        self._counters.decisions += decisions
        self._counters.policy_busy_s += seconds


def _blame(requests: Sequence[Request], error: BaseException) -> BaseException:
    if not isinstance(error, Exception) or isinstance(error, RolloutError):
        return error
    where = ", ".join(f"{request.episode.task} episode {request.episode.episode}" for request in requests[:3])
    what = f"the policy raised {type(error).__name__}: {error}"
    blame = PolicyError(f"{what} (batch of {len(requests)}: {where}{', …' if len(requests) > 3 else ''})")
    blame.__cause__ = error
    return blame
