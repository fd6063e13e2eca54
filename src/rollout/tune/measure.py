"""Measuring a target and a policy on this machine, within a time: pieces, demand, supply."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Mapping, Sequence
from math import ceil
from statistics import fmean, median
from typing import Any, cast

from msgspec import Struct, structs

from rollout.api import Engine
from rollout.config import EvalConfig
from rollout.engine.execution import execution
from rollout.engine.scheduler import TaskKey
from rollout.engine.slots import Slot
from rollout.opening import opened_policy
from rollout.plan import plan_episodes, shard
from rollout.policies.base import Policy
from rollout.policies.load import policy_name
from rollout.rendering import Backend, require_rendering
from rollout.resources import available_memory, peak_memory, usable_cores, workers_that_fit
from rollout.tune.demand import Asked, Costs, Tour, as_demand, measure_demand
from rollout.tune.forecast import Course, Effort
from rollout.tune.lengths import mean_length
from rollout.tune.network import Network, Supply, flow
from rollout.tune.pieces import Log, Stage, play
from rollout.tune.recommend import Plan
from rollout.tune.sample import Instant, Sampled
from rollout.tune.supply import measure_supply
from rollout.types import EpisodeSpec

__all__ = ["Measured", "measure"]

LEAST_S = 1.0  # for measuring, whatever starting took
# Shares of the rest: when the last task may be built, when the policy's own pieces end, when the simulators' with an
# instant one do, and all; and what one number of simulators gets.
BUILD_UNTIL, PIECES_UNTIL, DEMAND_UNTIL, UNTIL, WINDOW = 0.3, 0.45, 0.75, 0.9, 0.06
MOST_WINDOW_S = 4.0
ENDS = 0.7  # of a window: when its pieces end
GROWS = 1.3  # times the demand for twice the simulators: twice as many again are worth a look
MOST_SIMULATORS = 64
LEAST_FRICTION, MOST_FRICTION = 0.8, 1.6
CANDIDATES = ("bf16", "fp16")


class Measured(Struct, frozen=True, kw_only=True):
    """What was found out."""

    plan: Plan  # its network corrected by
    friction: float  # how much longer a decision took with both than the model says
    start_s: float  # until the policy was open and the tasks listed
    pieces: Log  # with the policy itself
    asked: tuple[Asked, ...]  # with an instant one
    supplies: Mapping[str, Supply]  # by number format, the config's own first
    worker_bytes: int  # that one worker more takes
    fitting: int  # workers that memory holds
    most: int  # of them that the measurements allow to speak about
    backend: Backend
    renders: bool
    measured_s: float

    @property
    def logs(self) -> tuple[Log, ...]:
        """Of all pieces."""
        return (self.pieces, *(each.log for each in self.asked))


async def measure(policy: Any, config: EvalConfig, budget_s: float, age_s: float = 0.0) -> Measured:
    """Measure, in about `budget_s` if builds are no longer than that; `age_s` had passed before.

    Raises `UsageError` where the config cannot be run, `RolloutError` where a simulator fails, and `PolicyError` where
    the policy does.
    """
    began_s = time.perf_counter()
    async with Engine(config) as engine:
        async with opened_policy(policy, config) as adapted:
            engine.check_policy(adapted.spec, policy_name(policy))
            if engine.renders(adapted.spec):
                require_rendering(engine.backend)
            suites = await engine.describe()
            specs = shard(plan_episodes(suites.values(), config), config.shard)
            stage = Stage(
                suites={spec.task_key: suites[spec.suite].only(spec.task_id) for spec in specs},
                options=engine.options,
                execution=execution(config, adapted.spec),
            )
            measuring = _Measuring(engine, stage, specs, Sampled(adapted), began_s, budget_s)
            measured = await measuring.measured(config.dtype, age_s)
            candidates = CANDIDATES if _has_formats(adapted, config) else ()
        for dtype in candidates:
            async with opened_policy(policy, config.replaced(dtype=dtype)) as adapted:
                supply = await measuring.supply(adapted, measured.most)
                measured = structs.replace(measured, supplies={**measured.supplies, dtype: supply})
    return measured


class _Measuring:
    def __init__(
        self,
        engine: Engine,
        stage: Stage,
        specs: Sequence[EpisodeSpec],
        sampled: Sampled,
        began_s: float,
        budget_s: float,
    ) -> None:
        self._engine, self._stage, self._specs, self._sampled = engine, stage, specs, sampled
        self._began_s, self._budget_s, self._cores = began_s, budget_s, usable_cores()
        self._asked: list[Asked] = []

    async def measured(self, dtype: str, age_s: float) -> Measured:
        self._measuring_s = time.perf_counter()
        start_s = age_s + self._measuring_s - self._began_s
        slots = self._engine.slots(len(self._specs))
        self._pieces = pieces = Log()
        tour, policy = Tour(self._specs, self._at(BUILD_UNTIL), pieces), cast(Policy, self._sampled)
        await play(self._stage, slots, tour, policy, self._at(PIECES_UNTIL), pieces)
        build, worker_bytes = _build(pieces, len(slots), self._cores), _worker_bytes(slots)
        fitting = len(slots) + workers_that_fit(available_memory(), worker_bytes / 1e9)
        await self._demand(len(slots), min(fitting, len(self._specs), MOST_SIMULATORS), build)
        asked = tuple(sorted(self._asked, key=lambda each: each.simulators))
        most = min(2 * asked[-1].simulators, fitting)
        supply = await self.supply(self._sampled.policy, most)
        logs = (pieces, *(each.log for each in asked))
        decisions = _decisions(self._specs, pieces, logs)
        course = Course(build=build, reset=_reset(asked[0].log, pieces), decisions=decisions)
        episodes = Counter(spec.task_key for spec in self._specs)
        mix = {key: episodes[key] * each for key, each in decisions.items()}
        demand = as_demand(asked, self._cores, mix, Costs(logs))
        friction = await self._friction(asked, supply, Costs(logs), len(slots))
        network = Network(demand=demand, supply=supply, cores=self._cores)
        return Measured(
            plan=Plan(specs=self._specs, course=course, network=network.times(friction)),
            friction=friction,
            start_s=start_s,
            pieces=pieces,
            asked=asked,
            supplies={dtype: supply},
            worker_bytes=worker_bytes,
            fitting=fitting,
            most=most,
            backend=self._engine.backend,
            renders=self._engine.renders(self._sampled.spec),
            measured_s=time.perf_counter() - self._began_s,
        )

    async def supply(self, policy: Policy, most: int) -> Supply:
        """What `policy` gives, which may be another form of the one that was sampled."""
        return await measure_supply(self._sampled.of(policy), min(most, len(self._specs)), self._at(UNTIL))

    def _at(self, share: float) -> float:
        """When this share of the budget is spent, of what starting left."""
        left_s = max(LEAST_S, self._began_s + self._budget_s - self._measuring_s)
        return self._measuring_s + share * left_s

    async def _demand(self, ready: int, most: int, build: Effort) -> None:
        """One simulator, as many as cores, as many as are `ready`; then twice as many each time, while that gives more
        and `most` and the time allow."""
        instant = Instant(self._sampled)
        for number in sorted({1, min(self._cores, ready), ready}):
            await self._ask(number, instant)
        while self._scales() and 2 * self._asked[-1].simulators <= most:
            number = 2 * self._asked[-1].simulators
            if time.perf_counter() + build.seconds(number, self._cores) + self._window_s > self._at(
                DEMAND_UNTIL
            ):
                break
            await self._ask(number, instant)

    async def _ask(self, number: int, instant: Instant) -> None:
        stage = structs.replace(self._stage, horizon=self._horizon())
        slots = self._engine.first_slots(number)
        self._asked.append(
            await measure_demand(stage, slots, self._seen(), cast(Policy, instant), self._window_s)
        )

    async def _friction(self, asked: Sequence[Asked], supply: Supply, costs: Costs, workers: int) -> float:
        """The model against simulators and policy together, which get into each other's way: caches, Python's lock."""
        policy, stage = cast(Policy, self._sampled), self._stage
        slots = self._engine.first_slots(workers)
        both = await measure_demand(stage, slots, self._seen(), policy, self._window_s)
        demand = as_demand(asked, self._cores, both.log.turns, costs)
        told = flow(Network(demand=demand, supply=supply, cores=self._cores), workers, supply.most or workers)
        return min(max(told.decisions_per_s / both.decisions_per_s, LEAST_FRICTION), MOST_FRICTION)

    def _seen(self) -> dict[TaskKey, EpisodeSpec]:
        """The first episode of every task that was played."""
        return {
            spec.task_key: spec for spec in reversed(self._specs) if spec.task_key in self._sampled.chunks
        }

    def _horizon(self) -> int | None:
        """Of pieces that come to their end within a window: then they tell what rendering takes."""
        last = self._asked[-1].log if self._asked else self._pieces
        if not last.decisions:
            return None
        turns = max(1, round(ENDS * self._window_s * last.decisions / last.stepping_s))
        return turns * ceil(last.steps / last.decisions)

    @property
    def _window_s(self) -> float:
        return min(MOST_WINDOW_S, WINDOW * self._budget_s)

    def _scales(self) -> bool:
        """Whether the last step up gave clearly more."""
        if len(self._asked) < 2:
            return True
        before, last = self._asked[-2:]
        gained = last.decisions_per_s / before.decisions_per_s
        return gained > 1 + (GROWS - 1) * (last.simulators / before.simulators - 1)


def _has_formats(policy: Policy, config: EvalConfig) -> bool:
    """Whether other number formats can be had, and be quicker: for what runs on a GPU, unless one was asked for."""
    if config.dtype != "fp32" or not hasattr(policy, "spent"):
        return False
    from rollout.policies.device import choose_device

    return choose_device(config.device).type == "cuda"


def _worker_bytes(slots: Sequence[Slot]) -> int:
    """The largest worker's own memory, at its peak; what all of them share counts for none."""
    pids = [slot.worker.pid for slot in slots if slot.worker is not None and slot.worker.pid is not None]
    return max([peak_memory(pid) for pid in pids] or [0]) or 1


def _build(log: Log, workers: int, cores: int) -> Effort:
    """Of one task's simulator, up to its first episode; several workers built at once."""
    cpu_s, wall_s = median(cpu for _, cpu in log.builds), median(wall for wall, _ in log.builds)
    return Effort(cpu_s=cpu_s, rest_s=max(0.0, wall_s - cpu_s * max(1.0, workers / cores)))


def _reset(alone: Log, pieces: Log) -> Effort:
    """As one worker alone does it, where it did."""
    resets = alone.resets or pieces.resets or pieces.builds
    cpu_s = fmean(cpu for _, cpu in resets)
    return Effort(cpu_s=cpu_s, rest_s=max(0.0, median(wall - cpu for wall, cpu in resets)))


def _decisions(specs: Sequence[EpisodeSpec], pieces: Log, logs: Sequence[Log]) -> dict[TaskKey, float]:
    """Of one episode, by task: from its own pieces if one of them came to an end, else from all pieces."""
    told = pieces if pieces.decisions else max(logs, key=lambda log: log.decisions)
    steps = told.steps / max(1, told.decisions) or 1.0
    everything = [each for seen in pieces.seen.values() for each in seen]
    found = {}
    for spec in {spec.task_key: spec for spec in specs}.values():
        own = pieces.seen.get(spec.task_key, [])
        conclusive = any(each.ended or each.steps >= spec.horizon for each in own)
        found[spec.task_key] = max(1.0, mean_length(own if conclusive else everything, spec.horizon) / steps)
    return found
