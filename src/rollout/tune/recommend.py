"""How many workers, and how large a batch: the plan's shortest forecast among the settings that fit this machine."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import ceil
from typing import Literal, TypeAlias

from msgspec import Struct
from msgspec.structs import replace

from rollout.plan import shard
from rollout.tune.curve import Curve
from rollout.tune.forecast import Course, Forecast, forecast
from rollout.tune.network import Flow, Network, flow
from rollout.types import EpisodeSpec

__all__ = [
    "AUTO_MAX_BATCH",
    "Bound",
    "Choice",
    "Plan",
    "best_batch",
    "bound",
    "choose",
    "recommend",
    "shards",
]

AUTO_MAX_BATCH = 64
Bound: TypeAlias = Literal["simulators", "policy", "memory", "start-up"]

ENOUGH = 1.05  # times the shortest wall time: fewer workers hold less memory, and no forecast is better
CLEARLY = 1.05  # times as fast: worth another setting than the usual one
MOST_SHARDS = 1024


class Plan(Struct, frozen=True, kw_only=True):
    """What is to be run, and on what."""

    specs: Sequence[EpisodeSpec]
    course: Course
    network: Network


class Choice(Struct, frozen=True, kw_only=True):
    """A setting, and what it is expected to give."""

    workers: int
    max_batch: int
    flow: Flow  # while all of them work
    forecast: Forecast


def recommend(plan: Plan, most: int, max_batch: int | None = None) -> Choice:
    """The fewest workers, `most` at most, with which the plan takes hardly longer than with the best number.

    `max_batch` None: what goes best with them.
    """
    most = max(1, min(most, len(plan.specs)))
    choices = [choose(plan, workers, max_batch) for workers in _sizes(most, plan.network.cores)]
    shortest_s = min(choice.forecast.wall_s for choice in choices)
    return next(choice for choice in choices if choice.forecast.wall_s <= ENOUGH * shortest_s)


def choose(plan: Plan, workers: int, max_batch: int | None = None) -> Choice:
    """What is expected of so many workers."""
    batch = best_batch(plan.network, workers) if max_batch is None else max_batch
    rate = _rate(plan.network, workers, batch)
    return Choice(
        workers=workers,
        max_batch=batch,
        flow=flow(plan.network, workers, batch),
        forecast=forecast(plan.specs, plan.course, rate, workers, plan.network.cores),
    )


def best_batch(network: Network, workers: int) -> int:
    """The batch limit for `workers`: the usual one, unless the policy does clearly more in smaller batches."""
    supply = network.supply
    usual = min(max(AUTO_MAX_BATCH, workers), supply.most or MOST_SHARDS)
    peak = max((size for size, _ in supply.seconds.points), key=lambda size: size / supply.seconds(size))
    if peak >= min(usual, workers):
        return usual
    gain = flow(network, workers, peak).decisions_per_s / flow(network, workers, usual).decisions_per_s
    return peak if gain > CLEARLY else usual


def bound(choice: Choice, plan: Plan, roomier: Choice | None) -> Bound:
    """What the run would have to get more of, or faster, to end sooner. `roomier` is the choice where memory were no
    matter, if it limits at all."""
    if roomier is not None and roomier.forecast.wall_s * CLEARLY < choice.forecast.wall_s:
        return "memory"
    network, workers = plan.network, choice.workers
    building_s = choice.forecast.builds * plan.course.build.seconds(workers, network.cores)
    if building_s > choice.forecast.wall_s * workers / 2:
        return "start-up"
    demand, supply = network.demand, network.supply
    quicker = replace(demand, turn=demand.turn.times(0.5), cpu=demand.cpu.times(0.5))
    stronger = replace(supply, seconds=supply.seconds.times(0.5))
    simulators = flow(replace(network, demand=quicker), workers, choice.max_batch)
    policy = flow(replace(network, supply=stronger), workers, choice.max_batch)
    return "policy" if policy.decisions_per_s > simulators.decisions_per_s else "simulators"


def shards(plan: Plan, choice: Choice, start_s: float, within_s: float) -> int | None:
    """How many machines like this one it takes to have all of it within `within_s`; None where no number will do."""
    most = min(len(plan.specs), MOST_SHARDS)

    def wall_s(count: int) -> float:
        part = replace(plan, specs=shard(plan.specs, (1, count)))
        return start_s + choose(part, min(choice.workers, len(part.specs)), choice.max_batch).forecast.wall_s

    count = 1
    while (needed_s := wall_s(count)) > within_s:
        if count == most:
            return None
        count = min(max(count + 1, ceil(0.9 * count * needed_s / within_s)), most)
    return count


def _sizes(most: int, cores: int) -> list[int]:
    """Numbers of workers worth a try: steps of about a third, and the cores once and twice."""
    found, size = {1, most, cores, 2 * cores}, 2
    while size < most:
        found |= {size, size + size // 2}
        size *= 2
    return sorted(each for each in found if each <= most)


def _rate(network: Network, workers: int, max_batch: int) -> Callable[[float], float]:
    """Decisions a second by simulators at work: some numbers are played, the others lie between them."""
    sizes = _sizes(workers, network.cores)
    return Curve(tuple((size, flow(network, size, max_batch).decisions_per_s) for size in sizes))
