"""What counters say about speed: rates over the last seconds, what bounds the run, and when it will end."""

from __future__ import annotations

from collections import deque

from msgspec import Struct

from rollout.display.base import Counters, TaskCounters
from rollout.display.load import limit_now, limit_of_all
from rollout.resources import usable_cores
from rollout.results.efficiency import Limit

__all__ = ["RateWindow", "Rates", "eta_s", "overall", "whole_run"]


class Rates(Struct, frozen=True, kw_only=True):
    """Speed over a stretch of wall time."""

    steps_per_s: float
    decisions_per_s: float
    mean_batch: float | None  # None: no batch ended in this stretch
    policy_busy: float  # share of the stretch that the policy spent computing, 0 to 1
    bound: Limit | None  # what binds; None: nothing was measured


class RateWindow:
    """Rates over the last `span_s` seconds: they show the present, not the average since the start."""

    def __init__(self, span_s: float = 10.0) -> None:
        self.span_s = span_s
        self._cores = usable_cores()
        self._samples: deque[_Sample] = deque()

    def observe(self, counters: Counters, now_s: float) -> Rates | None:
        """Take a sample of `counters` and rate the window that ends with it; None for the first sample."""
        self._samples.append(_Sample.of(counters, now_s))
        # The oldest sample may be older than the span: else one that refreshes rarely would have no window.
        while len(self._samples) > 2 and self._samples[1].at_s <= now_s - self.span_s:
            self._samples.popleft()
        first, last = self._samples[0], self._samples[-1]
        if last.at_s <= first.at_s:
            return None
        limit = limit_now(
            counters,
            wall_s=last.at_s - first.at_s,
            sim_busy_s=last.sim_busy_s - first.sim_busy_s,
            policy_busy_s=last.policy_busy_s - first.policy_busy_s,
            decisions=last.decisions - first.decisions,
            cores=self._cores,
        )
        return _between(first, last, limit)


class _Sample(Struct, frozen=True, kw_only=True):
    at_s: float
    steps: int
    decisions: int
    batches: int
    policy_busy_s: float
    sim_busy_s: float

    @classmethod
    def of(cls, counters: Counters, now_s: float) -> _Sample:
        return cls(
            at_s=now_s,
            steps=counters.steps,
            decisions=counters.decisions,
            batches=counters.batches,
            policy_busy_s=counters.policy_busy_s,
            sim_busy_s=counters.sim_busy_s,
        )


def whole_run(counters: Counters, wall_s: float) -> Rates | None:
    """Rates since the first episode started, `wall_s` seconds ago."""
    if wall_s <= 0:
        return None
    return _between(_Sample.of(Counters(), 0.0), _Sample.of(counters, wall_s), limit_of_all(counters, wall_s))


def _between(first: _Sample, last: _Sample, limit: Limit | None) -> Rates:
    wall_s = last.at_s - first.at_s
    decisions, batches = last.decisions - first.decisions, last.batches - first.batches
    return Rates(
        steps_per_s=(last.steps - first.steps) / wall_s,
        decisions_per_s=decisions / wall_s,
        mean_batch=decisions / batches if batches else None,
        # A forward that began before the window is counted where it ends, so the share can pass 1.
        policy_busy=min(1.0, (last.policy_busy_s - first.policy_busy_s) / wall_s),
        bound=limit,
    )


def eta_s(counters: Counters, elapsed_s: float) -> float | None:
    """Seconds until the last episode, at the pace of this run so far; None until something is known of it.

    Episodes under way count half, as they are on average: without that, sixteen workers of which the first
    has just ended an episode would look as slow as one. Until one has ended, it is as long as it takes at that pace if
    each lasts to its horizon.
    """
    here = counters.done - counters.resumed
    if here < 1:
        left = counters.most_steps - counters.steps
        return left * elapsed_s / counters.steps if counters.steps and left > 0 else None
    under_way = sum(task.active for task in counters.tasks.values()) / 2
    return max(0.0, counters.planned - counters.done - under_way) * elapsed_s / (here + under_way)


def overall(counters: Counters) -> TaskCounters:
    """All tasks as one row."""
    tasks = counters.tasks.values()
    return TaskCounters(
        suite="",
        task=f"all {len(tasks)} tasks",
        instruction="",
        planned=counters.planned,
        done=counters.done,
        successes=sum(task.successes for task in tasks),
        failures=sum(task.failures for task in tasks),
        errors=sum(task.errors for task in tasks),
        active=sum(task.active for task in tasks),
    )
