"""What counters say about speed: rates over the last seconds, what bounds the run, and when it will end."""

from __future__ import annotations

from collections import deque
from enum import StrEnum
from typing import Final

from msgspec import Struct

from rollout.display.base import Counters, TaskCounters
from rollout.resources import usable_cores

__all__ = ["Bound", "RateWindow", "Rates", "bound_by", "eta_s", "overall", "whole_run"]

NEVER_RESTS: Final = 0.9  # share of the wall time above which the policy leaves nothing to gain elsewhere


class Bound(StrEnum):
    """What a run would have to get more of to go faster."""

    SIMULATORS = "simulators"
    POLICY = "policy"


class Rates(Struct, frozen=True, kw_only=True):
    """Speed over a stretch of wall time."""

    steps_per_s: float
    decisions_per_s: float
    mean_batch: float | None  # None: no batch ended in this stretch
    policy_busy: float  # share of the stretch that the policy spent computing, 0 to 1
    bound: Bound | None  # None: nothing was measured


def bound_by(
    *, policy_busy_s: float, sim_busy_s: float, wall_s: float, workers: int, cores: int
) -> Bound | None:
    """Say what bounds a run, from how loaded its two resources were over `wall_s` seconds.

    The rule: the policy's load is the share of the wall time that it computed, `policy_busy_s / wall_s`. The
    simulators' load is how many workers were at work on average, over how many can work at once:
    `sim_busy_s / wall_s / min(workers, cores)`. A policy that hardly rests (a load of 0.9 or more) is the
    bound, however busy the simulators are, for faster simulators would only wait for it longer; otherwise it
    is whichever load is larger. How many workers wait for the policy says nothing by itself: with twice as
    many workers as cores, half of them may wait while every core simulates.

    None where neither did any work.
    """
    if wall_s <= 0 or policy_busy_s + sim_busy_s <= 0:
        return None
    at_once = max(1, min(workers, cores))
    policy_load, sim_load = policy_busy_s / wall_s, sim_busy_s / wall_s / at_once
    return Bound.POLICY if policy_load >= NEVER_RESTS or policy_load > sim_load else Bound.SIMULATORS


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
        return _between(self._samples[0], self._samples[-1], len(counters.workers), self._cores)


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
    start = _Sample.of(Counters(), 0.0)
    return _between(start, _Sample.of(counters, wall_s), len(counters.workers), usable_cores())


def _between(first: _Sample, last: _Sample, workers: int, cores: int) -> Rates | None:
    wall_s = last.at_s - first.at_s
    if wall_s <= 0:
        return None
    decisions, batches = last.decisions - first.decisions, last.batches - first.batches
    policy_busy_s, sim_busy_s = last.policy_busy_s - first.policy_busy_s, last.sim_busy_s - first.sim_busy_s
    return Rates(
        steps_per_s=(last.steps - first.steps) / wall_s,
        decisions_per_s=decisions / wall_s,
        mean_batch=decisions / batches if batches else None,
        # A forward that began before the window is counted where it ends, so the share can pass 1.
        policy_busy=min(1.0, policy_busy_s / wall_s),
        bound=bound_by(
            policy_busy_s=policy_busy_s, sim_busy_s=sim_busy_s, wall_s=wall_s, workers=workers, cores=cores
        ),
    )


def eta_s(counters: Counters, elapsed_s: float) -> float | None:
    """Seconds until the last episode, at the pace of this run so far; None until one episode has ended.

    Episodes under way count half, as they are on average: without that, sixteen workers of which the first
    has just ended an episode would look as slow as one.
    """
    here = counters.done - counters.resumed
    if here < 1:
        return None
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
