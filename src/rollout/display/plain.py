"""Plain lines, for logs and for terminals that cannot redraw."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final, TextIO

from rollout.display.base import Counters, RunPlan, WorkerState
from rollout.display.limits import bound_by, remedy
from rollout.display.rates import Rates, RateWindow, overall
from rollout.display.terminal import forgiving, ready
from rollout.display.text import ErrorLines, count, eta, interval, one_line, plural, rate
from rollout.types import EpisodeResult

__all__ = ["PlainDisplay"]

FIRST_S: Final = 2.0
OFTEN_S, SELDOM_S = 5.0, 60.0


class PlainDisplay:
    """Prints what runs, a line every few seconds (every minute in a run of hours), and a line an error."""

    interval_s: float = 1.0

    def __init__(self, stream: TextIO, clock: Callable[[], float] = time.monotonic) -> None:
        self._stream = forgiving(stream)
        self._clock = clock  # seconds, as `time.monotonic`
        self._window = RateWindow()
        self._errors = ErrorLines()

    def start(self, plan: RunPlan, counters: Counters) -> None:
        self._counters = counters
        self._started_s = self._clock()
        self._due_s = FIRST_S
        self._window.observe(counters, self._started_s)
        self._say(f"rollout: {one_line(' '.join(plan.targets))} with policy {one_line(plan.policy)}")
        episodes = f"{plural(counters.planned, 'episode')} of {plural(len(counters.tasks), 'task')}"
        recorded = f" ({counters.resumed} already recorded)" if counters.resumed else ""
        workers = f", {plural(plan.workers, 'worker')}" if plan.workers else ""
        out = f", results in {one_line(plan.out)}" if plan.out else ""
        self._say(f"{episodes}{recorded}{workers}{out}")

    def refresh(self) -> None:
        elapsed_s = self._elapsed_s()
        rates = self._window.observe(self._counters, self._clock())
        if elapsed_s >= self._due_s and ready(self._stream):
            self._due_s = elapsed_s + min(max(OFTEN_S, elapsed_s / 60), SELDOM_S)
            self._say(progress_line(self._counters, rates, elapsed_s))

    def episode(self, result: EpisodeResult) -> None:
        line = self._errors.tell(result)
        if line is not None:
            self.note(line)

    def note(self, message: str) -> None:
        self._say(f"{_stamp(self._elapsed_s())} {one_line(message)}")

    def finish(self) -> None:
        self._say(progress_line(self._counters, None, self._elapsed_s(), ended=True))

    def _elapsed_s(self) -> float:
        return self._clock() - self._started_s

    def _say(self, line: str) -> None:
        print(line, file=self._stream, flush=True)


def progress_line(counters: Counters, rates: Rates | None, elapsed_s: float, *, ended: bool = False) -> str:
    """`[  12.3 s] 14/30 episodes  86 % success [60–96 %]  1,234 steps/s  bound by the policy  eta 15 s`."""
    total = overall(counters)
    parts = [f"{_stamp(elapsed_s)} {counters.done}/{counters.planned} episodes"]
    if total.successes + total.failures:
        parts.append(f"{rate(total)} success [{interval(total)}]")
    if total.errors:
        parts.append(plural(total.errors, "error"))
    if rates is not None and counters.steps:
        parts.append(f"{count(rates.steps_per_s)} steps/s")
        if rates.bound is not None:
            advice = remedy(rates.bound)
            parts.append(bound_by(rates.bound, now=True) + (f": {advice}" if advice else ""))
    building = sum(state in (WorkerState.STARTING, WorkerState.BUILDING) for state in counters.workers)
    if building and not counters.steps:  # a LIBERO scene takes long enough to wonder
        parts.append(f"{plural(building, 'simulator')} being built")
    if counters.done < counters.planned:
        parts.append("stopped" if ended else eta(counters, elapsed_s))
    return "  ".join(parts)


def _stamp(elapsed_s: float) -> str:
    return f"[{elapsed_s:7.1f} s]"
