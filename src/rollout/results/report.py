"""What an evaluation gives back."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from msgspec import Struct

from rollout.results.summary import Stats, Summary, TaskStats
from rollout.types import EpisodeResult, ProtocolUsed

__all__ = ["Report"]


class Report(Struct, frozen=True, kw_only=True):
    """An evaluation's summary and its records, in the plan's order.

    `episodes` is a sequence that keeps them small, for runs of hundreds of thousands, and makes a record anew each time
    that it is looked at. `tuple(report.episodes)` is for what takes no sequence: `msgspec.json.encode`, for example.
    """

    summary: Summary
    episodes: Sequence[EpisodeResult]
    out: Path | None = None  # the results directory, if one was written
    interrupted: bool = False

    @property
    def success_rate(self) -> float | None:
        """Successes over judged episodes (errors never enter); None where no episode has a success signal."""
        return self.summary.overall.success_rate

    @property
    def ci95(self) -> tuple[float, float] | None:
        """Wilson's 95 % interval around `success_rate`."""
        return self.summary.overall.ci95

    @property
    def protocol(self) -> ProtocolUsed | None:
        """Whose evaluation rules were followed, value by value."""
        return self.summary.protocol

    @property
    def tasks(self) -> Mapping[str, TaskStats]:
        """By task name, or "suite/task" where two suites share one."""
        return self.summary.tasks

    @property
    def suites(self) -> Mapping[str, Stats]:
        """By suite, e.g. "metaworld:mt10"."""
        return self.summary.suites
