"""The live view: a region at the bottom of the terminal that is redrawn in place, with Rich."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterator, Sequence
from typing import Final

from rich.console import Console, ConsoleOptions, RenderResult
from rich.live import Live
from rich.segment import Segment
from rich.style import Style
from rich.text import Text

from rollout.display.base import Counters, RunPlan
from rollout.display.frame import View, compose
from rollout.display.rates import Rates, RateWindow
from rollout.display.tasks import Key, Line
from rollout.display.terminal import ready
from rollout.display.text import ErrorLines, eta, one_line
from rollout.types import EpisodeResult

__all__ = ["LiveDisplay"]

SHARE: Final = 1 / 150  # of one core, at most, for drawing: 0.7 %
FASTEST_S, SLOWEST_S = 0.25, 5.0


class LiveDisplay:
    """Draws a run on a terminal, and gives the terminal back as it was.

    The frame is composed in `refresh` alone. What a policy prints meanwhile, in any thread, appears above the
    region, which is then redrawn from the frame that exists: printing stays cheap and reads no counters.
    """

    interval_s: float = FASTEST_S

    def __init__(self, console: Console) -> None:
        self._console = console
        self._live = Live(
            console=console,
            auto_refresh=False,
            redirect_stdout=True,
            redirect_stderr=True,
            vertical_overflow="crop",
        )
        self._window = RateWindow()
        self._errors = ErrorLines()
        self._notes: deque[Text] = deque(maxlen=1000)
        self._finished: list[Key] = []
        self._cost_s: float | None = None

    def start(self, plan: RunPlan, counters: Counters) -> None:
        self._plan, self._counters = plan, counters
        self._started_s = time.monotonic()
        self._live.start()
        self._draw(self._window.observe(counters, self._started_s))

    def refresh(self) -> None:
        if not ready(self._console.file):
            return
        before = time.thread_time()
        self._draw(self._window.observe(self._counters, time.monotonic()))
        self._pace(time.thread_time() - before)

    def episode(self, result: EpisodeResult) -> None:
        line = self._errors.tell(result)
        if line is not None:
            self._notes.append(Text(line, style="red"))

    def note(self, message: str) -> None:
        # Kept until the next refresh: a burst of notes costs one redraw, and a paused terminal none.
        self._notes.append(Text(one_line(message), style="yellow"))

    def finish(self) -> None:
        if not self._live.is_started:
            return
        try:
            self._draw(None, ended=True)
        finally:
            self._live.stop()

    def _draw(self, rates: Rates | None, *, ended: bool = False) -> None:
        counters = self._counters
        self._note_finished()
        elapsed_s = time.monotonic() - self._started_s
        view = View(
            plan=self._plan,
            counters=counters,
            elapsed_s=elapsed_s,
            eta=eta(counters, self._running_s()),
            rates=rates,
            finished=self._finished,
            ended=ended,
        )
        width, height = self._console.size
        self._live.update(_Frame(compose(view, width, height)))
        with self._console:  # one write for the notes and the frame
            if self._notes:
                self._console.print(Text("\n").join(self._notes))
                self._notes.clear()
            self._live.refresh()

    def _running_s(self) -> float:
        return time.monotonic() - (self._counters.started_s or self._started_s)

    def _note_finished(self) -> None:
        known = set(self._finished)
        self._finished += [
            key
            for key, task in self._counters.tasks.items()
            if task.done >= task.planned and key not in known
        ]

    def _pace(self, cost_s: float) -> None:
        """Refresh as often as `SHARE` of a core allows, by what the last refreshes cost."""
        self._cost_s = cost_s if self._cost_s is None else 0.8 * self._cost_s + 0.2 * cost_s
        self.interval_s = min(max(FASTEST_S, self._cost_s / SHARE), SLOWEST_S)


class _Frame:
    """Composed lines for Rich, which cuts them at the terminal's edge and never wraps them."""

    def __init__(self, lines: Sequence[Line]) -> None:
        self._segments = list(_segments(lines))

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        return self._segments


def _segments(lines: Sequence[Line]) -> Iterator[Segment]:
    for line in lines:
        for text, style in line:
            if text:
                yield Segment(text, Style.parse(style) if style else None)
        yield Segment.line()
