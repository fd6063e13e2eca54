"""What a run took: from the counters to the `timing` of its summary."""

from __future__ import annotations

import time
from statistics import median

from msgspec import Struct

from rollout.display.base import Counters, Latencies
from rollout.display.load import efficiency
from rollout.display.rates import whole_run
from rollout.policies.base import Policy, PolicySpent
from rollout.results.efficiency import Efficiency, Limit
from rollout.results.summary import BatchTiming, PolicyTiming, Timing

__all__ = ["Stopwatch", "Taken"]


class Taken(Struct, frozen=True, kw_only=True):
    """What a run took, and how near that is to the least that it could have taken."""

    timing: Timing
    efficiency: Efficiency


class Stopwatch:
    """Started with the run."""

    def __init__(self, counters: Counters, policy: Policy) -> None:
        self._counters = counters
        self._spent: PolicySpent | None = getattr(policy, "spent", None)
        # A policy may have served other runs before.
        self._before = None if self._spent is None else self._spent.copy_of()
        self._began = time.monotonic()

    def taken(self) -> Taken:
        """What the run took until now."""
        counters = self._counters
        wall_s = time.monotonic() - self._began
        wall = max(wall_s, 1e-9)
        rates = whole_run(counters, wall)
        assert rates is not None  # some time has passed
        measured = counters.done - counters.resumed
        workers_s = wall * max(1, len(counters.workers))
        start_up_s = min(wall, max(0.0, counters.began_s - self._began))
        found = efficiency(counters, wall, start_up_s)
        limit = found.bound.by if found.bound is not None else rates.bound
        timing = Timing(
            wall_s=wall_s,
            episodes_per_s=measured / wall if measured else None,
            steps_per_s=rates.steps_per_s if counters.steps else None,
            decisions=counters.decisions,
            steps=counters.steps,
            mean_batch=rates.mean_batch,
            policy_busy=rates.policy_busy,
            worker_utilisation=min(1.0, counters.sim_busy_s / workers_s),
            bound_by=limit or Limit.SIMULATORS,
            policy=self._policy(wall),
        )
        return Taken(timing=timing, efficiency=found)

    def _policy(self, wall_s: float) -> PolicyTiming:
        now, before = self._spent, self._before
        told = None if now is None or before is None else now.since(before)
        return PolicyTiming(
            batches=_curve(self._counters.latencies),
            batch_limit=self._counters.batch_limit,
            idle_s=max(0.0, wall_s - self._counters.policy_busy_s),
            collate_s=None if told is None else told.collate,
            copy_s=None if told is None else told.copy,
            forward_s=None if told is None else told.forward,
        )


def _curve(latencies: Latencies) -> dict[int, BatchTiming]:
    return {
        size: BatchTiming(forwards=latencies.counts[size], median_s=median(latencies.seconds[size]))
        for size in sorted(latencies.counts)
    }
