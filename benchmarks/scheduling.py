"""The work of the scheduling workload, for every contender the same, and the least time that it can take."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from benchmarks.batching_theory import demand
from benchmarks.batching_work import Curve
from benchmarks.environments import drawn_for

__all__ = ["SEED", "Accelerator", "Work"]

SEED = 1000


@dataclass
class Accelerator:
    """A simulated policy: a forward of B sleeps for a + b B."""

    curve: Curve

    def forward(self, batch: int) -> None:
        """One batch."""
        time.sleep(self.curve(batch))


@dataclass(frozen=True)
class Work:
    """Episodes of drawn lengths for N workers, `speed` times as fast as in life."""

    workers: int
    episodes: int
    speed: float
    curve: Curve  # in life

    @classmethod
    def of(cls, case: dict[str, Any]) -> Work:
        """From a case's parameters."""
        curve = Curve(case["a_s"], case["b_s"])
        return cls(case["workers"], case["episodes"], case["speed"], curve)

    @property
    def accelerator(self) -> Accelerator:
        """On the faster clock."""
        return Accelerator(self.curve.faster(self.speed))

    @property
    def seeds(self) -> Sequence[int]:
        """One an episode."""
        return range(SEED, SEED + self.episodes)

    @property
    def bound_s(self) -> float:
        """No order of the work takes less, on the faster clock: not the workers, each of which waits for a forward of
        one at least at every decision; not the policy; not the longest episode."""
        drawn = [drawn_for(seed, self.speed) for seed in self.seeds]
        curve = self.accelerator.curve
        asked = demand(drawn, curve, self.workers, self.workers)
        workers_s = asked.cores_s + asked.decisions * curve(1) / self.workers
        return max(workers_s, asked.policy_s, asked.longest_s)

    def share(self, wall_s: float) -> float:
        """Of the bound: 1 is the best there is."""
        return self.bound_s / wall_s
