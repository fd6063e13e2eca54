"""Gathers the decisions of all episodes into batches, and runs the policy in a thread of its own.

Self-clocking: while a forward runs, the next batch gathers. `BatchQueue` decides, `Forward` calls the policy; this is
what waits between them.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from queue import SimpleQueue
from threading import Thread
from typing import Any

from rollout.display.base import Counters
from rollout.engine.batch_queue import BatchQueue
from rollout.engine.forward import Call, Forward, blame
from rollout.policies.base import Request

__all__ = ["Batcher"]

Pending = tuple[Request, "asyncio.Future[Any]"]


class Batcher:
    """`await decide(request)`. A context manager that owns the policy's threads.

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
        calls: int = 1,
        goes_on: bool = False,
        note: Callable[[str], None] = lambda message: None,
    ) -> None:
        """`calls` of `infer` may run at once, each in a thread of its own; `note` is told what a user should know.

        What the policy raises ends a run, so nothing more is sent to it; a server `goes_on`, for its other clients.
        """
        self._forward, self._counters, self._inline = Forward(infer, copies=not inline), counters, inline
        self._queue: BatchQueue[Pending] = BatchQueue(max_batch, max_wait_s)
        self._loop = asyncio.get_running_loop()
        self._free = self._calls = calls
        self._note, self._goes_on = note, goes_on
        self._active = 0
        self._busy_since: float | None = None  # since when at least one call runs
        self._scheduled = False
        self._timer: asyncio.TimerHandle | None = None
        self._jobs: SimpleQueue[list[Pending] | None] = SimpleQueue()

    def __enter__(self) -> Batcher:
        for index in range(0 if self._inline else self._calls):
            # Daemons, and not joined: a forward may take seconds (or for ever), and Ctrl-C must not.
            Thread(target=self._serve, name=f"rollout-policy-{index}", daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._timer is not None:
            self._timer.cancel()
        for _thread in range(self._calls):
            self._jobs.put(None)

    @property
    def active(self) -> int:
        """Episodes that may ask."""
        return self._active

    @active.setter
    def active(self, count: int) -> None:
        self._active = count
        if len(self._queue):
            self._schedule()  # a batch that waited for an episode which has ended waits for nothing

    def limit(self, most: int) -> None:
        """From now on at most `most` decisions a batch; where memory left fewer, those."""
        left = self._counters.batch_limit
        self._queue.max_batch = most if left is None else min(most, left)

    async def decide(self, request: Request) -> Any:
        """The policy's action chunk for `request`. Raises `PolicyError` where the policy failed."""
        if self._inline:
            return self._decide_now(request)
        future: asyncio.Future[Any] = self._loop.create_future()
        self._queue.put((request, future), time.monotonic())
        self._schedule()
        return await future

    def _decide_now(self, request: Request) -> Any:
        began, counters = time.perf_counter(), self._counters
        try:
            chunk = self._forward.alone(request)
        except BaseException as exc:
            error = blame([request], exc)
        else:
            seconds = time.perf_counter() - began
            self._note_forward(1, seconds)
            counters.policy_busy_s += seconds
            counters.policy_cpu_s += seconds  # its clock takes as long to read as some policies take
            return chunk
        raise error

    def _schedule(self) -> None:
        # After this pass of the loop, so that all replies which are here already share the batch.
        if self._free and not self._scheduled:
            self._scheduled = True
            self._loop.call_soon(self._pump)

    def _pump(self) -> None:
        self._scheduled = False
        while self._free and len(self._queue):
            now, may_come = time.monotonic(), self._active - len(self._queue)
            batch = self._queue.take(now, may_come)
            if not batch:
                if self._timer is None:
                    self._timer = self._loop.call_later(self._queue.due_in(now, may_come), self._time_out)
                return
            self._free -= 1
            self._jobs.put(batch)

    def _time_out(self) -> None:
        self._timer = None
        self._pump()

    def _serve(self) -> None:
        """One of the policy's threads."""
        while (batch := self._jobs.get()) is not None:
            call = self._forward([request for request, _ in batch])
            try:
                self._loop.call_soon_threadsafe(self._done, batch, call)
            except RuntimeError:
                return  # the loop was closed while the policy ran
            del batch, call  # waiting for the next, this thread must not keep what workers could write to

    def _done(self, batch: list[Pending], call: Call) -> None:
        self._count(call)
        self._count_busy(call)
        self._free += 1
        if call.fits is not None:
            self._shrink(call.fits)
        # First the next batch, then those that wait for this one: waking them takes longer than a policy should rest.
        if len(self._queue) and (call.error is None or self._goes_on):
            self._pump()
        error = None if call.error is None else blame([request for request, _ in batch], call.error)
        for index, (_, future) in enumerate(batch):
            if future.done():
                continue  # its episode was cancelled meanwhile
            if error is not None:
                future.set_exception(error)
            else:
                future.set_result(call.chunks[index])

    def _shrink(self, fits: int) -> None:
        if fits < self._queue.max_batch:
            self._queue.max_batch = self._counters.batch_limit = fits
            self._note(f"the policy ran out of memory: from now on at most {fits} decisions a batch")

    def _count(self, call: Call) -> None:
        self._counters.policy_cpu_s += call.cpu_s
        for size, seconds in call.forwards:
            self._note_forward(size, seconds)

    def _note_forward(self, size: int, seconds: float) -> None:
        self._counters.batches += 1
        self._counters.decisions += size
        self._counters.latencies.note(size, seconds)

    def _count_busy(self, call: Call) -> None:
        """Time during which at least one call ran: several at once count once."""
        since = call.began if self._busy_since is None else min(call.began, self._busy_since)
        if self._free + 1 < self._calls:  # others run still
            self._busy_since = since
            return
        self._counters.policy_busy_s += call.ended - since
        self._busy_since = None
