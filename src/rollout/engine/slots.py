"""Worker slots: each holds a worker, or makes one when it is needed."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping

import anyio

from rollout.engine.scheduler import TaskKey
from rollout.sim.worker import InlineWorker, Worker, WorkerProcess

__all__ = ["Slot", "watch_deadlines"]

WATCH_INTERVAL_S = 0.25


class Slot:
    """A place for one worker. A worker that failed is discarded; the next `ready` makes a fresh one."""

    def __init__(self, index: int, spawn: Callable[[int], WorkerProcess | InlineWorker]) -> None:
        self.index = index
        self._spawn = spawn
        self.worker: WorkerProcess | InlineWorker | None = None

    @property
    def holds(self) -> TaskKey | None:
        """The task whose simulator the worker has built."""
        return None if self.worker is None else self.worker.task

    async def ready(self, family: str, options: Mapping[str, str]) -> Worker:
        """A worker that is started for `family`; one of another family is replaced."""
        if self.worker is not None and self.worker.family != family:
            await self.discard()
        if self.worker is None:
            self.worker = self._spawn(self.index)
            await self.worker.start(family, options)
        return self.worker

    async def discard(self) -> None:
        """End the worker. Idempotent."""
        worker, self.worker = self.worker, None
        if worker is not None:
            with anyio.CancelScope(shield=True):
                await worker.aclose()


async def watch_deadlines(slots: list[Slot]) -> None:
    """One watchdog for all workers: a timer for every call would cost more than the call."""
    while True:
        await anyio.sleep(WATCH_INTERVAL_S)
        now = time.monotonic()
        for slot in slots:
            if isinstance(slot.worker, WorkerProcess):
                slot.worker.check_deadline(now)
