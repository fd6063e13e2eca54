"""From the counters to what a run, or its last seconds, was spent on."""

from __future__ import annotations

from itertools import islice
from math import isfinite
from typing import Final

from rollout.display.base import Counters, Latencies, Work, WorkerState
from rollout.resources import core_times, usable_cores
from rollout.results.efficiency import Efficiency, Limit, Load, Shares, bound_of, limit_of

__all__ = ["best_batch", "efficiency", "limit_now", "limit_of_all"]

MOST_LOOKED_AT: Final = 16  # workers, several times a second: 30 us each
SETTING_UP: Final = (WorkerState.STARTING, WorkerState.BUILDING)


def efficiency(counters: Counters, wall_s: float, start_up_s: float) -> Efficiency:
    """Of the whole run, which took `wall_s`, of which `start_up_s` before a worker could turn to an episode."""
    if not counters.began_s or wall_s <= 0:
        return Efficiency()
    shares = _shares(counters, wall_s)
    if counters.done == counters.resumed:
        return Efficiency(shares=shares)
    size, _ = best_batch(counters.latencies)
    cpu_s = _cpu_by_phase(counters.work) | {"policy": counters.policy_cpu_s}
    bound = bound_of(_whole(counters, wall_s, start_up_s), size, cpu_s)
    return Efficiency(bound=bound, eta=bound.seconds / wall_s, shares=shares)


def limit_of_all(counters: Counters, wall_s: float) -> Limit | None:
    """What bound the run until now; None where nothing happened yet."""
    return _limit(_whole(counters, wall_s))


def limit_now(
    counters: Counters,
    *,
    wall_s: float,
    sim_busy_s: float,
    policy_busy_s: float,
    decisions: int,
    cores: int,
) -> Limit | None:
    """What binds at present: over the last `wall_s` seconds, in which the counters rose by so much."""
    states = counters.workers
    active = sum(task.active for task in counters.tasks.values())
    working = sum(state is not WorkerState.IDLE for state in states)
    if 2 * sum(state in SETTING_UP for state in states) > working:
        return Limit.START_UP
    if 0 < active < len(states) and counters.done + active >= counters.planned:
        return Limit.LONGEST
    busy_s = max(0.0, sim_busy_s)
    cpu_s = busy_s * _cpu_share(counters.work)
    return _limit(
        Load(
            wall_s=wall_s,
            cores=cores,
            workers=max(1, len(states)),
            busy_s=busy_s,
            cpu_s=cpu_s,
            # A forward that began before the window is counted where it ends, so it can pass 1.
            policy_busy_s=min(wall_s, policy_busy_s),
            policy_s=min(wall_s, policy_busy_s),
            policy_cpu_s=policy_busy_s * _policy_cpu_share(counters),
            least_wait_s=decisions * _quickest_s(counters),
            kept_s=_kept_s(counters, cpu_s),
        )
    )


def best_batch(latencies: Latencies) -> tuple[int | None, float]:
    """The knee of the curve t(B): the size that took least per decision, and the seconds per decision.

    Means of the latest forwards without the slowest one of each size, which may have been a warm-up.
    """
    per_decision = {size: _typical(list(kept)) / size for size, kept in latencies.seconds.items()}
    if not per_decision:
        return None, 0.0
    size = min(per_decision, key=lambda size: per_decision[size])
    return size, per_decision[size]


def _typical(seconds: list[float]) -> float:
    return (sum(seconds) - max(seconds)) / (len(seconds) - 1) if len(seconds) > 1 else seconds[0]


def _limit(load: Load) -> Limit | None:
    if load.wall_s <= 0 or load.busy_s + load.policy_busy_s <= 0:
        return None
    return limit_of(load)


def _whole(counters: Counters, wall_s: float, start_up_s: float = 0.0) -> Load:
    work, busy_s = counters.work, counters.sim_busy_s
    size, decision_s = best_batch(counters.latencies)
    policy_s = counters.policy_busy_s if size is None else counters.decisions * decision_s
    set_up_s = work.start + work.build
    cpu_s = busy_s * _cpu_share(work)
    return Load(
        wall_s=wall_s,
        cores=usable_cores(),
        workers=max(1, len(counters.workers)),
        busy_s=busy_s,
        cpu_s=cpu_s,
        policy_busy_s=counters.policy_busy_s,
        policy_s=min(counters.policy_busy_s, policy_s),
        policy_cpu_s=counters.policy_cpu_s,
        least_wait_s=counters.decisions * _quickest_s(counters),
        kept_s=_kept_s(counters, cpu_s),
        start_up_s=start_up_s,
        setting_up=set_up_s / max(busy_s + work.start + work.wait + work.other, 1e-9),
        longest_s=work.longest,
        longest_cpu_s=work.longest_cpu,
    )


def _kept_s(counters: Counters, cpu_s: float) -> float | None:
    """How long workers that computed for `cpu_s` were kept from a core, by what their processes met until now."""
    some = islice(counters.pids.values(), MOST_LOOKED_AT)
    times = [found for pid in some if (found := core_times(pid)) is not None]
    ran_s, waited_s = (sum(each) for each in zip(*times, strict=True)) if times else (0.0, 0.0)
    return cpu_s * waited_s / ran_s if ran_s > 0 else None


def _quickest_s(counters: Counters) -> float:
    quickest_s = counters.latencies.quickest_s
    return quickest_s if isfinite(quickest_s) else 0.0


def _cpu_share(work: Work) -> float:
    """CPU time over wall time in workers; 1 until something is known of it."""
    known_s = work.build + work.reset + work.simulate + work.render
    return sum(_cpu_by_phase(work).values()) / known_s if known_s > 0 else 1.0


def _cpu_by_phase(work: Work) -> dict[str, float]:
    """What steps of episodes without an end took is reckoned from the others; as wall time where there are none."""
    share = work.simulate_cpu / work.simulate_ended if work.simulate_ended > 0 else 1.0
    seconds = {
        "build": work.build_cpu,
        "reset": work.reset_cpu,
        "simulate": work.simulate * share,
        "render": work.render_cpu,
    }
    return {phase: max(0.0, cpu_s) for phase, cpu_s in seconds.items()}


def _policy_cpu_share(counters: Counters) -> float:
    return counters.policy_cpu_s / counters.policy_busy_s if counters.policy_busy_s > 0 else 0.0


def _shares(counters: Counters, wall_s: float) -> Shares:
    work = counters.work
    causes = {
        "start_up": work.start,
        "build": work.build,
        "reset": work.reset,
        "simulate": work.simulate,
        "render": work.render,
        "wait": work.wait,
        "other": work.other,
    }
    known_s = {cause: max(0.0, seconds) for cause, seconds in causes.items()}
    whole_s = max(wall_s * max(1, len(counters.workers)), sum(known_s.values()))
    shares = {cause: seconds / whole_s for cause, seconds in known_s.items()}
    idle = max(0.0, 1.0 - sum(shares.values()))
    return Shares(**shares, idle=idle, policy=min(1.0, counters.policy_busy_s / wall_s))
