"""Which display a run gets, and the guard that keeps a display's trouble from it."""

from __future__ import annotations

import atexit
import contextlib
import logging
from typing import TextIO

from rollout.config import DisplayName
from rollout.display.base import Counters, Display, RunPlan
from rollout.types import EpisodeResult

__all__ = ["GuardedDisplay", "NullDisplay", "create_display"]


def create_display(name: DisplayName, stream: TextIO) -> Display:
    """Make the display called `name` on `stream`; it never raises, whatever becomes of the stream.

    `auto` and `live` give the live view where the terminal can move its cursor, and plain lines elsewhere.
    """
    if name == "none":
        return NullDisplay()
    if name == "json":
        from rollout.display.json import JsonDisplay

        return GuardedDisplay(JsonDisplay(stream))
    from rollout.display.plain import PlainDisplay
    from rollout.display.terminal import Terminal, can_move_cursor

    if name == "plain" or not can_move_cursor(stream):
        return GuardedDisplay(PlainDisplay(stream))
    from rollout.display.live import LiveDisplay

    return GuardedDisplay(LiveDisplay(Terminal(stream)))


class NullDisplay:
    """Shows nothing."""

    interval_s: float = 60.0

    def start(self, plan: RunPlan, counters: Counters) -> None:
        pass

    def refresh(self) -> None:
        pass

    def episode(self, result: EpisodeResult) -> None:
        pass

    def note(self, message: str) -> None:
        pass

    def finish(self) -> None:
        pass


class GuardedDisplay:
    """Passes everything on to `inner`, until that raises: then the display is off, and the run goes on.

    A stream that is gone (`OSError`, or `ValueError` for a closed file) is no news to anybody; another
    exception is a bug of the display, and is logged. `finish` runs once, at the latest when the process
    exits, so that a terminal gets its cursor back.
    """

    def __init__(self, inner: Display) -> None:
        self.inner: Display | None = inner
        self.interval_s = inner.interval_s

    def start(self, plan: RunPlan, counters: Counters) -> None:
        atexit.register(self.finish)
        self._guard("start", plan, counters)

    def refresh(self) -> None:
        self._guard("refresh")

    def episode(self, result: EpisodeResult) -> None:
        self._guard("episode", result)

    def note(self, message: str) -> None:
        self._guard("note", message)

    def finish(self) -> None:
        atexit.unregister(self.finish)
        self._guard("finish")
        self.inner = None

    def _guard(self, method: str, *args: object) -> None:
        if self.inner is None:
            return
        try:
            getattr(self.inner, method)(*args)
            self.interval_s = self.inner.interval_s
        except Exception as exc:  # a display must never cost an evaluation
            self._switch_off(exc)

    def _switch_off(self, exc: Exception) -> None:
        inner, self.inner = self.inner, None
        self.interval_s = NullDisplay.interval_s
        # The stream may be gone for good, and `exc` says why already.
        with contextlib.suppress(Exception):
            if inner is not None:
                inner.finish()
        if not isinstance(exc, OSError | ValueError):
            logging.getLogger("rollout.display").warning("the display failed and is off", exc_info=exc)
