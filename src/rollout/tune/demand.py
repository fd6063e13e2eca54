"""How many decisions N simulators ask for, with a policy that answers at once."""

from __future__ import annotations

import time
from collections import Counter, defaultdict, deque
from collections.abc import Mapping, Sequence
from math import inf, sqrt
from statistics import fmean, stdev

from msgspec import Struct, structs

from rollout.engine.scheduler import TaskKey
from rollout.engine.slots import Slot
from rollout.policies.base import Policy
from rollout.resources import cpu_time, machine_time
from rollout.tune.curve import Curve
from rollout.tune.network import SPREAD, Demand
from rollout.tune.pieces import Log, Stage, play
from rollout.types import EpisodeSpec

__all__ = ["Asked", "Costs", "Tour", "as_demand", "measure_demand"]

ENOUGH = 4  # episodes of a task at least, and until
ERROR = 0.05  # of their mean length, its standard error, is not exceeded
QUANTILES = 32
FAR = 1000


class Asked(Struct, frozen=True, kw_only=True):
    """What so many simulators asked for."""

    simulators: int
    turn_s: float  # of a decision, from one question to the next
    cpu_s: float  # of it on a core, this process's part included
    spread: tuple[float, ...]  # single decisions, over their mean
    elsewhere: float  # cores that other programs took meanwhile
    log: Log

    @property
    def decisions_per_s(self) -> float:
        """The demand: what they would all ask for."""
        return self.simulators / self.turn_s


class Tour:
    """What each slot plays: every task once, as far as time allows, then more episodes of the one that it holds, until
    `log`, which is of what was played, tells how long they are."""

    def __init__(self, specs: Sequence[EpisodeSpec], build_until_s: float, log: Log) -> None:
        self._log = log
        self._episodes: dict[TaskKey, deque[EpisodeSpec]] = defaultdict(deque)
        for spec in specs:
            self._episodes[spec.task_key].append(spec)
        self._unseen, self._build_until_s = deque(self._episodes), build_until_s
        self._played: Counter[TaskKey] = Counter()

    def __call__(self, slot: int, holds: TaskKey | None) -> EpisodeSpec | None:
        if self._unseen and (holds is None or time.perf_counter() < self._build_until_s):
            key = self._unseen.popleft()
        elif holds is None:
            key = min(self._episodes, key=lambda each: self._played[each])
        elif self._played[holds] >= len(self._episodes[holds]) or self._is_known(holds):
            return None
        else:
            key = holds
        self._played[key] += 1
        self._episodes[key].rotate(-1)
        return self._episodes[key][-1]

    def _is_known(self, key: TaskKey) -> bool:
        lengths = [each.steps for each in self._log.seen.get(key, ())]
        return len(lengths) >= ENOUGH and stdev(lengths) <= ERROR * fmean(lengths) * sqrt(len(lengths))


async def measure_demand(
    stage: Stage,
    slots: Sequence[Slot],
    specs: Mapping[TaskKey, EpisodeSpec],
    policy: Policy,
    window_s: float,
) -> Asked:
    """Play pieces on all `slots` for `window_s`, each with the task that it holds; those that hold none of `specs` get
    one first."""
    keys, build = list(specs), {slot.index for slot in slots if slot.holds not in specs}

    def first(slot: int, holds: TaskKey | None) -> EpisodeSpec | None:
        if slot not in build:
            return None
        build.remove(slot)
        return specs[keys[slot % len(keys)]]

    def more(slot: int, holds: TaskKey | None) -> EpisodeSpec:
        return specs.get(holds or keys[0]) or specs[keys[slot % len(keys)]]

    if build:
        await play(structs.replace(stage, horizon=1), slots, first, policy, inf)
    ours, theirs, machine, began = (
        time.process_time(),
        _workers_time(slots),
        machine_time(),
        time.perf_counter(),
    )
    log = await play(stage, slots, more, policy, began + window_s)
    took_s = time.perf_counter() - began
    ours, theirs = time.process_time() - ours, _workers_time(slots) - theirs
    decisions = max(1, log.decisions)
    return Asked(
        simulators=len(slots),
        turn_s=log.stepping_s / decisions,
        cpu_s=(sum(log.cpu_s.values()) + ours) / decisions,
        spread=_spread(log.chunks_s),
        elsewhere=max(0.0, machine_time() - machine - ours - theirs) / took_s,
        log=log,
    )


def _workers_time(slots: Sequence[Slot]) -> float:
    """What their processes have computed so far."""
    return sum(cpu_time(slot.worker.pid) for slot in slots if slot.worker is not None and slot.worker.pid)


def as_demand(asked: Sequence[Asked], cores: int, mix: Mapping[TaskKey, float], costs: Costs) -> Demand:
    """One description of all that was measured, for decisions that are spread over tasks as `mix` says: a window had
    few tasks, and most decisions of the quickest."""
    by_number = sorted(asked, key=lambda each: each.simulators)
    alone = [each for each in by_number if each.simulators <= cores] or by_number
    cpu_s, turn_s = [], []
    for each in by_number:
        more_s = costs.mean(mix) - costs.mean(each.log.turns)
        cpu_s.append((each.simulators, max(0.0, each.cpu_s + more_s)))
        turn_s.append((each.simulators, each.turn_s + more_s * max(1.0, each.simulators / cores)))
    (before, less_s), (last, last_s) = ((0, 0.0), *turn_s)[-2:]
    # Beyond what was measured: as it was going, and computing what it did.
    onward_s = max(0.0, last_s - less_s) / (last - before) * (FAR - 1) * last
    return Demand(
        turn=Curve((*turn_s, (FAR * last, last_s + onward_s))),
        cpu=Curve((*cpu_s, (FAR * last, cpu_s[-1][1]))),
        spread=max(alone, key=lambda each: each.log.decisions).spread,
    )


class Costs:
    """CPU seconds of a decision by task, as far as tasks were played."""

    def __init__(self, logs: Sequence[Log]) -> None:
        keys = {key for log in logs for key in log.turns}
        self._each = {
            key: sum(log.cpu_s.get(key, 0.0) for log in logs) / sum(log.turns[key] for log in logs)
            for key in keys
        }

    def mean(self, mix: Mapping[TaskKey, float]) -> float:
        """Of decisions so many of each task; a task that nobody played is taken for the others' mean."""
        known = {key: count for key, count in mix.items() if key in self._each}
        total = sum(known.values())
        if not total:
            return fmean(self._each.values()) if self._each else 0.0
        return sum(self._each[key] * count for key, count in known.items()) / total


def _spread(chunks_s: Sequence[float]) -> tuple[float, ...]:
    """Evenly drawn quantiles, over their mean."""
    if len(chunks_s) < 2:
        return SPREAD
    ordered = sorted(chunks_s)
    drawn = [ordered[(2 * at + 1) * len(ordered) // (2 * QUANTILES)] for at in range(QUANTILES)]
    return tuple(each / fmean(drawn) for each in drawn)
