"""What `tune` found: the curves, what binds, what to run with, and how long that will take."""

from __future__ import annotations

from collections.abc import Callable
from statistics import fmean

from msgspec import Struct, structs

from rollout.tune.measure import Measured
from rollout.tune.network import Supply
from rollout.tune.recommend import Bound, Choice, bound, choose, recommend, shards

__all__ = ["DemandPoint", "SupplyPoint", "Tuning", "conclude"]

WITHIN_S = 600.0  # what shards are advised for
ROOMIER = 4  # times as many workers, to see whether memory is what limits
WORTH = 1.1  # times as fast: worth a number format that gives other results


class DemandPoint(Struct, frozen=True, kw_only=True):
    """What so many simulators ask for while the policy answers at once."""

    simulators: int
    decisions_per_s: float
    cpu_s: float  # of one decision, on a core


class SupplyPoint(Struct, frozen=True, kw_only=True):
    """What the policy gives in batches of this size."""

    batch: int
    decisions_per_s: float
    forward_s: float


class Tuning(Struct, frozen=True, kw_only=True):
    """A measurement of a target and a policy on this machine, and what follows from it."""

    policy: str
    targets: tuple[str, ...]
    tasks: int
    episodes: int  # of the plan, or of the shard that was asked for
    cores: int
    demand: tuple[DemandPoint, ...]
    supply: tuple[SupplyPoint, ...]
    policy_cores: float  # that a forward keeps busy
    build_s: float  # of one simulator, on a free machine
    reset_s: float
    physics_s: float  # of one decision: what its steps take, alone, without pictures
    render_s: (
        float | None
    )  # and the pictures; None where no piece came to its end, and they are in the physics
    steps_per_decision: float
    steps: float  # of an episode, as expected: its horizon, unless pieces ended before
    pieces: int
    ended: int  # pieces that ended before their horizon
    worker_bytes: int  # that one worker more takes
    workers_fitting: int
    workers: int
    max_batch: int
    dtype: str
    quicker_dtype: str | None  # that would shorten the run, with other results
    render: str | None  # the back end; None where nothing is rendered
    bound: Bound
    decisions_per_s: float  # expected while all workers work
    mean_batch: float
    elsewhere: float  # cores that other programs took while the simulators were measured
    start_s: float
    wall_s: float  # of the whole, start-up included
    shards: int | None  # machines like this one that bring it under ten minutes; None where no number does
    command: str
    measured_s: float


def conclude(
    measured: Measured, policy: str, targets: tuple[str, ...], dtype: str, command: Callable[[Choice], str]
) -> Tuning:
    """What follows from the measurement; `command` writes the one that runs with a choice."""
    plan, most = measured.plan, measured.most
    choice = recommend(plan, most)
    limited = most == measured.fitting and choice.workers >= most < len(plan.specs)
    roomier = recommend(plan, ROOMIER * most) if limited else None
    supply, alone = measured.supplies[dtype], measured.asked[0]
    turn_s = fmean(alone.log.chunks_s) if alone.log.decisions else alone.turn_s
    told = sum(each.log.told for each in measured.asked)
    render_s = sum(each.log.cost.render for each in measured.asked) / told if told else None
    steps = sum(log.steps for log in measured.logs) / max(1, sum(log.decisions for log in measured.logs))
    course = plan.course
    return Tuning(
        policy=policy,
        targets=targets,
        tasks=len(course.decisions),
        episodes=len(plan.specs),
        cores=plan.network.cores,
        demand=tuple(
            DemandPoint(simulators=each.simulators, decisions_per_s=each.decisions_per_s, cpu_s=each.cpu_s)
            for each in measured.asked
        ),
        supply=tuple(
            SupplyPoint(batch=size, decisions_per_s=supply.calls * size / seconds, forward_s=seconds)
            for size, seconds in supply.seconds.points
        ),
        policy_cores=supply.cores,
        build_s=course.build.seconds(1, 1),
        reset_s=course.reset.seconds(1, 1),
        physics_s=turn_s - (render_s or 0.0),
        render_s=render_s,
        steps_per_decision=steps,
        steps=steps * fmean(course.decisions[spec.task_key] for spec in plan.specs),
        pieces=sum(map(len, measured.pieces.seen.values())),
        ended=sum(each.ended for seen in measured.pieces.seen.values() for each in seen),
        worker_bytes=measured.worker_bytes,
        workers_fitting=measured.fitting,
        workers=choice.workers,
        max_batch=choice.max_batch,
        dtype=dtype,
        quicker_dtype=_quicker(measured, choice, dtype),
        render=measured.backend.reason if measured.renders else None,
        bound=bound(choice, plan, roomier),
        decisions_per_s=choice.flow.decisions_per_s,
        mean_batch=choice.flow.mean_batch,
        elsewhere=max(each.elsewhere for each in measured.asked),
        start_s=measured.start_s,
        wall_s=measured.start_s + choice.forecast.wall_s,
        shards=shards(plan, choice, measured.start_s, WITHIN_S),
        command=command(choice),
        measured_s=measured.measured_s,
    )


def _quicker(measured: Measured, choice: Choice, dtype: str) -> str | None:
    """The number format that shortens the run most, if one does clearly."""
    plan = measured.plan

    def wall_s(supply: Supply) -> float:
        slower = structs.replace(supply, seconds=supply.seconds.times(measured.friction))
        network = structs.replace(plan.network, supply=slower)
        return choose(structs.replace(plan, network=network), choice.workers).forecast.wall_s

    walls = {each: wall_s(supply) for each, supply in measured.supplies.items() if each != dtype}
    best = min(walls, key=lambda each: walls[each], default=None)
    return best if best is not None and WORTH * walls[best] < choice.forecast.wall_s else None
