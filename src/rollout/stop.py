"""How a command ends when the user wants it to: at the first signal in good order, at the second one at once."""

from __future__ import annotations

import os
import signal
from collections.abc import Awaitable, Callable
from typing import TypeVar

import anyio
from anyio.abc import TaskStatus

from rollout.errors import RolloutError

__all__ = ["Stop"]

T = TypeVar("T")


class Stop:
    """Watches for SIGINT, SIGTERM and SIGHUP while `guard` runs something."""

    def __init__(self) -> None:
        self.received: int | None = None  # the signal that came

    async def guard(self, work: Callable[[], Awaitable[T]], interrupt: Callable[[], bool]) -> T | None:
        """What `work` returns; None where a signal ended it.

        `interrupt` asks `work` to return what it has, and answers whether it will: `work` is cancelled otherwise.
        """
        found: T | None = None
        error: RolloutError | None = None
        async with anyio.create_task_group() as tasks:
            await tasks.start(self._watch, interrupt, tasks.cancel_scope)
            try:
                found = await work()
            except RolloutError as exc:  # out of the task group as itself, not as a group of one
                error = exc
            tasks.cancel_scope.cancel()
        if error is not None:
            raise error
        return found

    def farewell(self) -> str:
        """What to say at the end, for a signal that was received."""
        return f"stopped by {signal.Signals(self.received or 0).name}"

    @property
    def exit_code(self) -> int:
        """128 and the signal's number, as shells count."""
        return 128 + (self.received or 0)

    async def _watch(
        self, interrupt: Callable[[], bool], scope: anyio.CancelScope, *, task_status: TaskStatus[None]
    ) -> None:
        with anyio.open_signal_receiver(signal.SIGINT, signal.SIGTERM, signal.SIGHUP) as signals:
            task_status.started()
            async for number in signals:
                if self.received is not None:
                    os._exit(128 + self.received)  # the forkserver sees it, and kills every worker
                self.received = number
                if not interrupt():
                    scope.cancel()
