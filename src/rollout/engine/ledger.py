"""What one attempt at an episode took, for its record and for the run's counters."""

from __future__ import annotations

import time

from rollout.display.base import Counters
from rollout.sim.protocol import Built, Cost, ResetDone
from rollout.types import Spent

__all__ = ["Ledger"]


class Ledger:
    """Opened when a worker turns to an episode, and balanced when it leaves it, however that comes."""

    def __init__(self, counters: Counters) -> None:
        self._counters, self._work = counters, counters.work
        self._began_s = time.perf_counter()
        self._reset_s = self._film_s = self._cpu_s = (
            0.0  # building, resetting, and the pictures of the latter's film
        )
        counters.began_s = counters.began_s or time.monotonic()

    def built(self, done: Built) -> None:
        """The simulator was built."""
        self._add(done.build_s, 0.0, done.cost)
        self._work.build += done.build_s - done.cost.render
        self._work.built += 1
        self._work.build_cpu += done.cost.cpu - done.cost.render_cpu

    def was_reset(self, done: ResetDone) -> None:
        """The episode was started."""
        self._add(done.reset_s, done.render_s, done.cost)
        self._work.reset += done.reset_s + done.render_s - done.cost.render
        self._work.reset_cpu += done.cost.cpu - done.cost.render_cpu

    def _add(self, reset_s: float, film_s: float, cost: Cost) -> None:
        self._reset_s += reset_s
        self._film_s += film_s
        self._cpu_s += cost.cpu
        self._counters.sim_busy_s += reset_s + film_s
        self._work.render += cost.render
        self._work.render_cpu += cost.render_cpu

    def left(self, run_s: float, wait_s: float) -> None:
        """The worker is done with the episode: its chunks took `run_s` and its decisions `wait_s`."""
        attempt_s = time.perf_counter() - self._began_s
        self._work.simulate += run_s
        self._work.wait += wait_s
        self._work.other += max(0.0, attempt_s - self._reset_s - self._film_s - run_s - wait_s)

    def ended(self, run_s: float, cost: Cost, decisions: int) -> None:
        """The episode came to its end, with `decisions`, and its chunks had this `cost`."""
        work = self._work
        work.simulate -= cost.render
        work.simulate_ended += run_s - cost.render
        work.simulate_cpu += cost.cpu - cost.render_cpu
        work.render += cost.render
        work.render_cpu += cost.render_cpu
        busy_s, cpu_s = self._reset_s + self._film_s + run_s, self._cpu_s + cost.cpu
        policy_s = decisions * self._counters.latencies.quickest_s
        work.longest = max(work.longest, busy_s + policy_s)
        work.longest_cpu = max(work.longest_cpu, min(busy_s, cpu_s) + policy_s)

    def spent(self, sim_s: float, render_s: float, wait_s: float) -> Spent:
        """For the record: what the chunks took, with what came before them."""
        return Spent(reset=self._reset_s, sim=sim_s, render=self._film_s + render_s, wait=wait_s)
