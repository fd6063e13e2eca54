"""How a command ends when the user wants it to: at the first signal in good order, at the second one at once."""

from __future__ import annotations

import asyncio
import os
import select
import signal
import threading
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any, Final, TypeVar

import anyio

from rollout.engine.meant import Cut

__all__ = ["Stop"]

T = TypeVar("T")
PATIENCE_S: Final = 3.0
ONE_WISH_S: Final = 0.5
SHOW_CURSOR: Final = b"\x1b[?25h"


class Stop:
    """Listens for SIGINT, SIGTERM and SIGHUP while `guard` runs something. For the main thread, which gets them."""

    def __init__(self, *, ctrl_c: bool = True) -> None:
        """`ctrl_c` False: SIGINT stays Python's, as whoever debugs in this process needs it."""
        self.received: int | None = None  # the signal that came
        self._received_s = 0.0  # and when
        self._ctrl_c = ctrl_c
        self._overdue = False  # the event loop has not heard of it in time
        self._cut = False  # and was therefore made to

    async def guard(self, work: Callable[[], Awaitable[T]], interrupt: Callable[[], bool]) -> T | None:
        """What `work` returns; None where a signal ended it.

        `interrupt` asks `work` to return what it has, and answers whether it will: `work` is cancelled otherwise.
        Where something keeps the event loop from hearing of the signal, as a policy's factory may, it is cancelled
        where it stands, after a while.
        """
        loop = asyncio.get_running_loop()
        with anyio.CancelScope() as scope:

            def end() -> None:
                patience.cancel()
                if not interrupt():
                    scope.cancel()

            patience = threading.Timer(PATIENCE_S, self._insist, (threading.get_ident(),))
            patience.daemon = True

            def first() -> None:
                patience.start()
                loop.call_soon_threadsafe(end)

            with self._listening(first):
                try:
                    return await work()
                except asyncio.CancelledError:
                    if not self._cut:
                        raise
                finally:
                    patience.cancel()
        return None

    def farewell(self) -> str:
        """What to say at the end, for a signal that was received."""
        return f"stopped by {signal.Signals(self.received or 0).name}"

    @property
    def exit_code(self) -> int:
        """128 and the signal's number, as shells count."""
        return 128 + (self.received or 0)

    @contextmanager
    def _listening(self, first: Callable[[], None]) -> Iterator[None]:
        # Handlers of Python's, not of the event loop: they run while the loop is kept from running.
        def heard(number: int, _frame: Any) -> None:
            if self._overdue:
                self._overdue, self._cut = False, True
                # Not KeyboardInterrupt: that would end the event loop, and with it what others clean up there.
                raise Cut
            now = time.monotonic()
            if self.received is None:
                self.received, self._received_s = number, now
                first()
            elif _insists(number, now - self._received_s):
                self._leave()

        before = {number: signal.signal(number, heard) for number in _heard(self._ctrl_c)}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, signal.SIG_DFL if handler is None else handler)

    def _insist(self, thread: int) -> None:
        self._overdue = True
        signal.pthread_kill(thread, self.received or signal.SIGINT)

    def _leave(self) -> None:
        """Now. The forkserver sees it, and kills every worker."""
        with suppress(OSError, ValueError):
            if os.isatty(1) and select.select([], [1], [], 0)[1]:  # not paused by Ctrl-S
                os.write(1, SHOW_CURSOR)  # which the live view hides
        os._exit(self.exit_code)


def _insists(number: int, after_s: float) -> bool:
    """Whether a signal that follows the first is a second wish: who sends one often sends it twice.

    A shell and the kernel both tell of a terminal that is closed, by SIGHUP; a supervisor's SIGTERM goes to the process
    and to its group.
    """
    return number != signal.SIGHUP and after_s > ONE_WISH_S


def _heard(ctrl_c: bool) -> list[signal.Signals]:
    # `nohup` has SIGHUP ignored, and that is to stay so. Shells have a background command ignore SIGINT for the
    # terminal's sake alone: who sends it to this very process means it.
    ignorable = (signal.SIGTERM, signal.SIGHUP)
    terminating = [n for n in ignorable if signal.getsignal(n) is not signal.SIG_IGN]
    return [signal.SIGINT, *terminating] if ctrl_c else terminating
