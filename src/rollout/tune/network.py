"""How many decisions a second N simulators and one policy make together: the engine's own rule, in virtual time.

A simulator steps for a while, asks, waits for its answer, and steps on. The policy, whenever it is free, takes what
waits, up to the batch limit. Who computes shares the cores evenly. Nothing here is drawn from a clock or a generator of
the process: the same numbers give the same flow.
"""

from __future__ import annotations

from collections import deque
from functools import lru_cache
from heapq import heappop, heappush
from math import inf
from random import Random

from msgspec import Struct
from msgspec.structs import replace

from rollout.tune.curve import Curve

__all__ = ["Demand", "Flow", "Network", "Supply", "flow"]

SPREAD = (1.0,)
ROUNDS, WARM_UP = 30, 10  # decisions of each simulator that are counted, and those before them
LEAST = 200  # decisions in all
AT_ONCE_S = 20e-6  # an event loop's pass takes so long: what comes in it shares a batch


class Demand(Struct, frozen=True, kw_only=True):
    """What a decision costs its simulator, from an answer to the next question, by simulators at work."""

    turn: Curve  # seconds while the policy answers at once
    cpu: Curve  # of them on a core, this process's share included
    spread: tuple[float, ...] = SPREAD  # single decisions, over their mean: no two take the same time

    def rest(self, simulators: int, cores: int) -> float:
        """Seconds of a turn off the cores: asleep, rendering on a GPU, on the way.

        With more simulators than cores, they hide behind the others' work: as long then as with few, or longer.
        """

        def beside(number: int) -> float:
            return self.turn(number) - self.cpu(number) * max(1.0, number / cores)

        return max(0.0, beside(simulators), beside(min(simulators, cores)))


class Supply(Struct, frozen=True, kw_only=True):
    """What a forward costs."""

    seconds: Curve  # by batch size
    cores: float = 0.0  # that it keeps busy; near 0 for one that waits for others, about 1 for a GPU's
    calls: int = 1  # forwards at once
    most: int | None = None  # decisions that one can take


class Network(Struct, frozen=True, kw_only=True):
    """Simulators and a policy on the cores of one machine."""

    demand: Demand
    supply: Supply
    cores: int

    def times(self, factor: float) -> Network:
        """The same, all of it so many times as long."""
        demand, supply = self.demand, self.supply
        return Network(
            demand=replace(demand, turn=demand.turn.times(factor), cpu=demand.cpu.times(factor)),
            supply=replace(supply, seconds=supply.seconds.times(factor)),
            cores=self.cores,
        )


class Flow(Struct, frozen=True, kw_only=True):
    """What goes through a network once it has settled."""

    decisions_per_s: float
    mean_batch: float
    policy_busy: float  # share of the time that at least one forward runs, 0 to 1
    cores_busy: float  # share of all cores' time, 0 to 1


@lru_cache(maxsize=512)
def flow(network: Network, simulators: int, max_batch: int) -> Flow:
    """The flow with so many simulators, and at most `max_batch` decisions in a forward."""
    return _Play(network, simulators, max_batch).flow()


class _Job(Struct, eq=False):
    """Seconds off the cores, then `cpu_s` on `weight` cores; a simulator's, or a forward's for its `batch`."""

    rest_s: float
    cpu_s: float
    weight: float = 1.0
    batch: int = 0


class _Play:
    def __init__(self, network: Network, simulators: int, max_batch: int) -> None:
        self._cores, self._supply = network.cores, network.supply
        self._limit = min(max_batch, network.supply.most or max_batch)
        demand = network.demand
        self._cpu_s, self._rest_s = demand.cpu(simulators), demand.rest(simulators, network.cores)
        self._spread, self._dice = demand.spread, Random(0)
        self._simulators = simulators
        self._now = self._work = 0.0  # seconds, and those of work that a core of its own would have done
        self._resting: list[tuple[float, int, _Job]] = []  # until when
        self._working: list[tuple[float, int, _Job]] = []  # until which work
        self._weight = 0.0  # cores that are asked for
        self._order = self._waiting = self._decisions = self._forwards = 0
        self._free = network.supply.calls
        self._policy_s = self._cores_s = 0.0
        self._ended: deque[_Job] = deque()

    def flow(self) -> Flow:
        for index in range(self._simulators):
            self._step((index + 1) / self._simulators)  # a run's do not begin together either
        before, whole = WARM_UP * self._simulators, max(LEAST, (WARM_UP + ROUNDS) * self._simulators)
        self._until(before)
        decisions, began = self._decisions, self._now
        forwards, policy_s, cores_s = self._forwards, self._policy_s, self._cores_s
        self._until(whole)
        took = max(self._now - began, 1e-12)
        count = self._decisions - decisions
        return Flow(
            decisions_per_s=count / took,
            mean_batch=count / max(1, self._forwards - forwards),
            policy_busy=min(1.0, (self._policy_s - policy_s) / took),
            cores_busy=min(1.0, (self._cores_s - cores_s) / took / self._cores),
        )

    def _until(self, decisions: int) -> None:
        while self._decisions < decisions:
            self._advance()
            while min(self._ends()) <= self._now + AT_ONCE_S:
                self._advance()
            while self._ended:
                self._over(self._ended.popleft())
            while self._free and self._waiting:
                self._forward()

    def _step(self, share: float = 1.0) -> None:
        share *= self._dice.choice(self._spread)
        self._begin(_Job(self._rest_s * share, self._cpu_s * share))

    def _forward(self) -> None:
        batch = min(self._waiting, self._limit)
        self._waiting -= batch
        self._free -= 1
        seconds, cores = self._supply.seconds(batch), self._supply.cores
        off = max(0.0, 1.0 - cores)  # one that needs less than a core waits for the rest of its time
        self._begin(_Job(seconds * off, seconds * (1.0 - off), max(1.0, cores), batch))

    def _begin(self, job: _Job) -> None:
        self._order += 1
        if job.rest_s > 0:
            heappush(self._resting, (self._now + job.rest_s, self._order, job))
        else:
            self._compute(job)

    def _compute(self, job: _Job) -> None:
        self._order += 1
        self._weight += job.weight
        heappush(self._working, (self._work + job.cpu_s, self._order, job))

    @property
    def _speed(self) -> float:
        """What each that computes gets of a core."""
        return min(1.0, self._cores / self._weight) if self._working else 1.0

    def _ends(self) -> tuple[float, float]:
        """When the next work ends, and the next rest."""
        worked = self._now + (self._working[0][0] - self._work) / self._speed if self._working else inf
        return worked, self._resting[0][0] if self._resting else inf

    def _advance(self) -> None:
        """To the next moment at which something ends."""
        speed, (worked, rested) = self._speed, self._ends()
        took = max(0.0, min(worked, rested) - self._now)
        self._policy_s += took * (self._free < self._supply.calls)
        self._cores_s += took * min(self._weight, self._cores)
        self._now += took
        self._work += took * speed
        if worked <= rested:
            _, _, job = heappop(self._working)
            self._weight -= job.weight
            self._ended.append(job)
        else:
            self._compute(heappop(self._resting)[2])

    def _over(self, job: _Job) -> None:
        if not job.batch:
            self._waiting += 1
            return
        self._free += 1
        self._forwards += 1
        self._decisions += job.batch
        for _ in range(job.batch):
            self._step()
