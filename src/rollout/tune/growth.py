"""Whether a run in progress should have more workers, and how large its batches: plain decisions from what it measured.

A run with `--workers auto` starts with twice as many as cores. That is enough where simulators compute. Where they
sleep, render on a GPU or wait for a slow policy, more of them fill its batches; every one costs a build first.
"""

from __future__ import annotations

from msgspec import Struct

from rollout.tune.curve import Curve
from rollout.tune.network import Demand, Network, Supply, flow
from rollout.tune.recommend import CLEARLY, best_batch

__all__ = ["Advice", "Growth", "Look", "Stretch"]

LEAST_S, LEAST_DECISIONS = (
    3.0,
    40,
)  # of a stretch that tells something; each in vain makes the next twice as long
KEPT = 0.5  # of the gain that was promised: with less, the next promise is worth nothing
FAR = 1000


class Look(Struct, frozen=True, kw_only=True):
    """A run's counters at one moment, all of them since its beginning."""

    at_s: float
    decisions: int
    busy_s: float  # of the simulators, summed over workers
    cpu_s: float  # of the workers and of this process, the policy apart
    policy_s: float  # while a forward ran
    policy_cpu_s: float


class Stretch(Struct, frozen=True, kw_only=True):
    """What is to come."""

    workers: int  # now
    most: int  # that memory holds and episodes are left for
    decisions: float  # left
    build_s: float  # of one simulator


class Advice(Struct, frozen=True, kw_only=True):
    """What to go on with."""

    workers: int
    max_batch: int


class Growth:
    """Looks at a run from time to time. At most twice as many workers at once: what batches of those sizes take was not
    seen yet."""

    def __init__(self, cores: int, calls: int = 1, most_batch: int | None = None) -> None:
        """`calls` of the policy may run at once, with `most_batch` decisions each."""
        self._cores, self._calls, self._most_batch = cores, calls, most_batch
        self._first: Look | None = None  # of the present stretch
        self._before: tuple[float, float] | None = (
            None  # decisions a second before it grew, and times promised
        )
        self._in_vain = 0  # stretches that advised nothing: thinking takes time from the run
        self._ended = False  # growing did not help

    def interrupted(self) -> None:
        """Something is being built: nothing of this time tells what a run does once it has settled."""
        self._first = None

    def advice(self, look: Look, curve: Curve | None, ahead: Stretch) -> Advice | None:
        """What the stretch from the first look to this one advises; None where nothing is to be changed, or known.

        `curve` is what forwards took by batch size.
        """
        first = self._first
        if first is None or curve is None:
            self._first = look
            return None
        took_s, decisions = look.at_s - first.at_s, look.decisions - first.decisions
        if self._ended or took_s < LEAST_S * 2**self._in_vain or decisions < LEAST_DECISIONS:
            return None
        self._first = look
        self._in_vain += 1
        if not self._kept(decisions / took_s):
            return None
        network = self._network(first, look, curve, ahead.workers)
        more = min(2 * ahead.workers, ahead.most)
        if more <= ahead.workers:
            return None
        batch = best_batch(network, more)
        times = (
            flow(network, more, batch).decisions_per_s / flow(network, ahead.workers, batch).decisions_per_s
        )
        left_s = ahead.decisions / (decisions / took_s)
        build_s = ahead.build_s * max(1.0, (more - ahead.workers) / self._cores)
        if build_s + left_s / times > left_s / CLEARLY:
            return None
        self._before = (decisions / took_s, times)
        self._first, self._in_vain = None, 0
        return Advice(workers=more, max_batch=batch)

    def _kept(self, rate: float) -> bool:
        """Whether the last growth was worth it, as far as there was one."""
        if self._before is not None:
            before, times = self._before
            self._ended = rate < before * (1 + KEPT * (times - 1))
        return not self._ended

    def _network(self, first: Look, look: Look, curve: Curve, workers: int) -> Network:
        decisions = look.decisions - first.decisions
        turn_s = (look.busy_s - first.busy_s) / decisions
        # A simulator cannot compute for longer than it was busy on a core.
        crowded = max(1.0, workers / self._cores)
        cpu_s = min(max(0.0, look.cpu_s - first.cpu_s) / decisions, turn_s)
        rest_s = max(0.0, turn_s - cpu_s * crowded)
        far = max(self._cores, workers) * FAR
        turn = Curve(((workers, rest_s + cpu_s * crowded), (far, rest_s + cpu_s * far / self._cores)))
        busy_s = max(look.policy_s - first.policy_s, 1e-9)
        return Network(
            demand=Demand(turn=turn, cpu=Curve(((workers, cpu_s), (far, cpu_s)))),
            supply=Supply(
                seconds=curve,
                cores=(look.policy_cpu_s - first.policy_cpu_s) / busy_s,
                calls=self._calls,
                most=self._most_batch,
            ),
            cores=self._cores,
        )
