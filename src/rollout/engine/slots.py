"""Worker slots: each holds a worker, or makes one when it is needed, and replaces it before it has grown too large."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping

import anyio

from rollout.engine.scheduler import TaskKey
from rollout.errors import ProtocolError, WorkerDied
from rollout.sim.calls import Worker
from rollout.sim.inline import InlineWorker
from rollout.sim.worker import WorkerProcess

__all__ = ["Slot", "watch_deadlines"]

WATCH_INTERVAL_S = 0.25
SUSPENDED_S = 1.0  # a later wake-up means that this process, or its loop, stood still
# What a worker may gain after its first episode: more than any simulator needs that does not leak.
GROWTH_BYTES, GROWTH_SHARE = 256 << 20, 0.5
LOOK_INTERVAL_S = 0.05  # a look costs 20 us, and episodes may take as little as a millisecond


class Slot:
    """A place for one worker. A worker that failed is discarded; the next `ready` makes a fresh one."""

    def __init__(
        self,
        index: int,
        spawn: Callable[[int], WorkerProcess | InlineWorker],
        recycle_after: int | None = None,
    ) -> None:
        """`recycle_after`: the most episodes that one worker runs; None where only its growth counts."""
        self.index = index
        self._spawn, self._recycle_after = spawn, recycle_after
        self.worker: WorkerProcess | InlineWorker | None = None
        self.setbacks = 0  # how often in a row it could not have a worker
        self._episodes = 0  # that the worker has run
        self._grown_since: TaskKey | None = None  # the task whose first episode on the worker ended with
        self._first_bytes = 0  # so much memory held
        self._looked_s = 0.0

    @property
    def holds(self) -> TaskKey | None:
        """The task whose simulator the worker has built."""
        return None if self.worker is None else self.worker.task

    async def ready(self, family: str, options: Mapping[str, str], key: TaskKey | None = None) -> Worker:
        """A worker that is started for `family` and, given a `key`, holds no simulator but that task's.

        One that died meanwhile or is of another family is replaced, and so is one whose simulator cannot be closed.
        Raises `WorkerDied`.
        """
        if self.worker is not None and (self.worker.lost or self.worker.family != family):
            await self.discard()
        if self.worker is not None and key is not None and self.worker.task not in (None, key):
            try:
                await self.worker.release()
            except (WorkerDied, ProtocolError):
                await self.discard()  # no episode has to answer for that
        if self.worker is None:
            try:
                self.worker = self._spawn(self.index)
            except OSError as exc:  # no descriptor or no process is left
                unmade = WorkerDied(f"worker {self.index} could not be made: {exc.strerror or exc}")
                unmade.unmade = True
                raise unmade from exc
            self._episodes, self._grown_since = 0, None
            await self.worker.start(family, options)
        return self.worker

    async def episode_over(self) -> str | None:
        """Count an episode, and end the worker where it has run enough of them or has grown too large.

        Returns what to tell the user, where it has grown: a simulator that leaks memory would end the whole machine.
        """
        worker = self.worker
        if worker is None or isinstance(worker, InlineWorker):
            return None
        self._episodes += 1
        if self._episodes == self._recycle_after:
            await self.discard()
            return None
        now = time.monotonic()
        if worker.task == self._grown_since and now < self._looked_s + LOOK_INTERVAL_S:
            return None
        held, self._looked_s = worker.memory, now
        if worker.task != self._grown_since:  # another scene may need more
            self._grown_since, self._first_bytes = worker.task, held
        grown = held - self._first_bytes
        if grown <= max(GROWTH_BYTES, GROWTH_SHARE * self._first_bytes):
            return None
        told = f"worker {self.index} grew by {grown >> 20} MiB in {self._episodes} episodes and was replaced"
        await self.discard()
        return told

    async def discard(self) -> None:
        """End the worker. Idempotent."""
        worker, self.worker = self.worker, None
        if worker is not None:
            with anyio.CancelScope(shield=True):
                await worker.aclose()


async def watch_deadlines(slots: list[Slot]) -> None:
    """One watchdog for all workers: a timer for every call would cost more than the call."""
    while True:
        began = time.monotonic()
        await anyio.sleep(WATCH_INTERVAL_S)
        now = time.monotonic()
        late = now - began - WATCH_INTERVAL_S
        for slot in slots:
            if isinstance(slot.worker, WorkerProcess):
                if late > SUSPENDED_S:  # stopped by Ctrl-Z, or busy: the answer may be here, unread
                    slot.worker.extend_deadline(late)
                slot.worker.check_deadline(now)
