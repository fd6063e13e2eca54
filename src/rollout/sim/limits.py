"""How long a worker may take for each call, and what is said of one that took longer."""

from __future__ import annotations

from typing import Final

from msgspec import Struct

__all__ = ["CLOSING", "Limit", "Limits", "TimeLimits"]


class TimeLimits(Struct, frozen=True, kw_only=True):
    """How long a worker may take, in seconds."""

    start: float = 120.0
    reset: float = 300.0  # of a reset, and of building the simulator
    step: float = 60.0  # one step; a chunk of n gets n times as long


class Limit(Struct, frozen=True):
    """The time limit of one call, and how its end is told."""

    seconds: float
    told: str


CLOSING: Final = Limit(2.0, "")
"""For a simulator's close(); nobody is told, as a simulator that cannot close costs no result."""


class Limits:
    """The limit of every call. Made once a worker, so that a call only looks it up."""

    def __init__(self, seconds: TimeLimits) -> None:
        self.start = _limit("its start", "--start-timeout", seconds.start)
        self.listing = _limit("listing the tasks", "--start-timeout", seconds.start)
        self.build = _limit("building the simulator", "--reset-timeout", seconds.reset)
        self.reset = _limit("the reset", "--reset-timeout", seconds.reset)
        self._step_s = seconds.step
        self._steps: dict[int, Limit] = {}  # by length of the chunk: there are few

    def steps(self, count: int) -> Limit:
        """For a chunk of `count` steps."""
        found = self._steps.get(count)
        if found is None:
            what = "a step" if count == 1 else f"{count} steps"
            found = self._steps[count] = _limit(what, "--step-timeout", self._step_s, count)
        return found


def _limit(what: str, option: str, seconds: float, times: int = 1) -> Limit:
    setting = f"{option} {seconds:g}" + (f", {times} times" if times > 1 else "")
    return Limit(seconds * times, f"{what} did not end within {seconds * times:g} s ({setting})")
