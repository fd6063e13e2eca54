"""How near a run came to the least time that its work takes, and what binds it: one rule, for a whole run and for the
last seconds of one that is under way."""

from __future__ import annotations

from enum import StrEnum
from typing import Final

from msgspec import Struct

__all__ = ["Bound", "Efficiency", "Limit", "Load", "Shares", "bound_of", "limit_of"]

NEVER_RESTS: Final = 0.9  # share of the wall time above which the policy leaves nothing to gain elsewhere
CLEARLY: Final = (
    1.1  # times longer than all else, that a lack of workers is told of: busy workers are near the cores
)


class Limit(StrEnum):
    """What a run would have to get more of, or wait for less, to go faster."""

    SIMULATORS = "simulators"  # CPU time on the cores
    POLICY = "policy"
    WORKERS = "workers"  # each is busy, or waits its turn, while cores and policy rest: their number binds
    LONGEST = "longest episode"
    START_UP = "start-up"  # processes and simulators being made


class Bound(Struct, frozen=True, kw_only=True):
    """The least time that this run's own work takes on this machine, and its terms, in seconds.

    `seconds = start_up_s + max(cores_s, policy_s, longest_episode_s)`. Nothing can do the same work sooner; a run that
    did take `seconds` has an `eta` of 1.
    """

    seconds: float
    by: Limit  # what binds
    start_up_s: float  # until the first worker could turn to an episode
    cores_s: float  # CPU time of simulators, and of a policy on the same machine, over the cores
    policy_s: float  # all decisions in batches of `best_batch`
    longest_episode_s: float  # one episode, with its building, had it the machine for itself
    workers_s: float  # no part of the bound: what every worker has to do itself, spread evenly over them
    cores: int
    best_batch: int | None  # size of the batches that took least per decision; None: no forward ended
    cpu_s: dict[str, float]  # CPU time in `build`, `reset`, `simulate`, `render` and `policy`


class Shares(Struct, frozen=True, kw_only=True):
    """Where the workers' wall time went: the shares, from 0 to 1, of all but `policy` add up to 1."""

    start_up: float  # processes made, simulators imported
    build: float
    reset: float
    simulate: float
    render: (
        float  # for observations and videos; part of `simulate` where the simulator does not tell it apart
    )
    wait: float  # for the policy
    other: float  # in episodes: messages, the engine, what was lost with a worker that died or was stopped
    idle: float  # no episode
    policy: float  # of the wall time: at least one forward running


class Efficiency(Struct, frozen=True, kw_only=True):
    """What `summary.json` says of a run's speed. None: there was nothing to measure."""

    bound: Bound | None = None
    eta: float | None = None  # `bound.seconds` over the wall time
    shares: Shares | None = None


class Load(Struct, frozen=True, kw_only=True):
    """What a stretch of `wall_s` seconds was spent on, summed over workers, in seconds."""

    wall_s: float
    cores: int
    workers: int
    busy_s: float  # building, resetting, simulating, rendering
    cpu_s: float  # CPU time meanwhile
    policy_busy_s: float  # at least one forward running
    policy_s: float  # the same, had every batch been of the best size
    policy_cpu_s: float  # CPU time of the forwards
    least_wait_s: float  # of all decisions, each in the quickest forward
    kept_s: float | None = None  # workers waited for a core that others had; None: not known
    start_up_s: float = 0.0
    setting_up: float = 0.0  # share of the workers' work that made processes and built simulators
    longest_s: float = 0.0  # one episode at most,
    longest_cpu_s: float = 0.0  # and where no time but its CPU time counts

    @property
    def cores_s(self) -> float:
        """All CPU time, spread evenly; the policy's as it is in the best batches."""
        best = min(1.0, self.policy_s / self.policy_busy_s) if self.policy_busy_s > 0 else 1.0
        return (self.cpu_s + self.policy_cpu_s * best) / self.cores

    @property
    def workers_s(self) -> float:
        """What the workers do themselves, spread evenly."""
        return (self._own(self.busy_s, self.cpu_s) + self.least_wait_s) / self.workers

    @property
    def longest_episode_s(self) -> float:
        """The longest episode, had it the machine for itself."""
        return self._own(self.longest_s, self.longest_cpu_s)

    def _own(self, wall_s: float, cpu_s: float) -> float:
        """What `wall_s` in a worker would be without others: less what it was kept from a core."""
        return wall_s - self._kept * max(0.0, wall_s - cpu_s)

    @property
    def _kept(self) -> float:
        """The share of the workers' time without CPU time in which they waited for a core, and did not sleep. Where the
        system does not tell, the fuller the cores, the larger it is taken to be."""
        slept_s = self.busy_s - self.cpu_s
        if self.kept_s is None:
            return min(1.0, (self.cpu_s + self.policy_cpu_s) / (self.cores * self.wall_s))
        return min(1.0, self.kept_s / slept_s) if slept_s > 0 else 1.0


def limit_of(load: Load) -> Limit:
    """What binds: the largest of the terms, with two exceptions. Where workers did more setting up than anything else,
    that does; and a policy that hardly rests does, for in smaller batches than the best it may do so."""
    if load.setting_up > 0.5 or load.start_up_s > load.wall_s / 2:
        return Limit.START_UP
    if load.policy_busy_s >= NEVER_RESTS * load.wall_s:
        return Limit.POLICY
    cores = Limit.SIMULATORS if load.cpu_s >= load.policy_cpu_s else Limit.POLICY
    terms = {
        cores: load.cores_s,
        Limit.LONGEST: load.longest_episode_s,
        Limit.WORKERS: load.workers_s / CLEARLY,
    }
    terms[Limit.POLICY] = max(load.policy_s, terms.get(Limit.POLICY, 0.0))
    return max(terms, key=lambda limit: terms[limit])  # the first of equals


def bound_of(load: Load, best_batch: int | None, cpu_s: dict[str, float]) -> Bound:
    """The bound of a whole run."""
    return Bound(
        seconds=load.start_up_s + max(load.cores_s, load.policy_s, load.longest_episode_s),
        by=limit_of(load),
        start_up_s=load.start_up_s,
        cores_s=load.cores_s,
        policy_s=load.policy_s,
        longest_episode_s=load.longest_episode_s,
        workers_s=load.workers_s,
        cores=load.cores,
        best_batch=best_batch,
        cpu_s=cpu_s,
    )
