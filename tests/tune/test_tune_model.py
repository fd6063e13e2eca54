"""The arithmetic of `rollout tune`: what it foretells from given costs, without measuring anything."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import structs

from rollout.tune.curve import Curve
from rollout.tune.demand import Asked, Costs, as_demand
from rollout.tune.forecast import Course, Effort, forecast
from rollout.tune.lengths import Seen, mean_length
from rollout.tune.network import Demand, Network, Supply, flow
from rollout.tune.pieces import Log
from rollout.tune.recommend import Choice, Plan, best_batch, bound, choose, recommend, shards
from rollout.types import EpisodeSpec

FAR = 100_000
UNEVEN = (0.7, 0.85, 1.0, 1.15, 1.3)

seconds = st.floats(1e-4, 1.0)


def network(
    *,
    cpu_s: float = 0.0,
    rest_s: float = 0.0,
    call_s: float = 0.0,
    each_s: float = 1e-6,
    cores: int = 4,
    policy_cores: float = 0.0,
    calls: int = 1,
    spread: Sequence[float] = UNEVEN,
) -> Network:
    """Simulators that compute `cpu_s` and rest `rest_s`, and a policy that takes `call_s` and `each_s` a decision."""
    turn = Curve(((1, rest_s + cpu_s), (cores, rest_s + cpu_s), (FAR, rest_s + cpu_s * FAR / cores)))
    return Network(
        demand=Demand(turn=turn, cpu=Curve(((1, cpu_s), (FAR, cpu_s))), spread=tuple(spread)),
        supply=Supply(
            seconds=Curve(((1, call_s + each_s), (2, call_s + 2 * each_s))), cores=policy_cores, calls=calls
        ),
        cores=cores,
    )


def specs(tasks: int, episodes: int, horizon: int = 100) -> tuple[EpisodeSpec, ...]:
    return tuple(
        EpisodeSpec(suite="gym:x", task=f"t{task}", task_id=task, episode=e, seed=e, horizon=horizon)
        for task in range(tasks)
        for e in range(episodes)
    )


def plan(
    net: Network, tasks: int = 1, episodes: int = 40, build_s: float = 0.0, decisions: float = 50.0
) -> Plan:
    planned = specs(tasks, episodes)
    course = Course(
        build=Effort(cpu_s=build_s), reset=Effort(), decisions={spec.task_key: decisions for spec in planned}
    )
    return Plan(specs=planned, course=course, network=net)


# Curves, and lengths of episodes


def test_a_curve_goes_through_its_points_and_on_as_steep_as_it_ended() -> None:
    curve = Curve(((1, 1.0), (2, 2.0), (4, 3.0)))
    assert [curve(size) for size in (0, 1, 1.5, 2, 3, 4, 6)] == [1.0, 1.0, 1.5, 2.0, 2.5, 3.0, 4.0]


def test_a_batch_beyond_the_only_one_measured_costs_in_proportion() -> None:
    assert Curve(((2, 1.0),))(6) == 3.0


def test_a_measured_curve_never_falls() -> None:
    assert Curve.of({4: 1.0, 1: 2.0, 2: 1.5}).points == ((1, 2.0), (2, 2.0), (4, 2.0))


def test_episodes_that_all_ended_have_their_mean_length() -> None:
    assert mean_length([Seen(10, True), Seen(20, True), Seen(60, True)], 100) == pytest.approx(30.0)


def test_episodes_of_which_none_ended_are_taken_to_last_to_the_horizon() -> None:
    assert mean_length([Seen(10, False), Seen(90, False)], 100) == 100.0
    assert mean_length([], 100) == 100.0


def test_what_was_cut_off_counts_for_as_long_as_it_was_seen() -> None:
    # At 20 one of two ended: the one that was cut off at 10 says nothing of it. Half go on, and end at 60.
    assert mean_length([Seen(10, False), Seen(20, True), Seen(60, True)], 100) == pytest.approx(40.0)


@given(st.lists(st.builds(Seen, st.integers(1, 120), st.booleans()), max_size=12))
def test_a_mean_length_lies_between_the_shortest_end_and_the_horizon(seen: list[Seen]) -> None:
    shortest = min([each.steps for each in seen if each.ended] + [100])
    assert shortest - 1e-9 <= mean_length(seen, 100) <= 100 + 1e-9


# The network


@given(cpu_s=seconds, rest_s=seconds, each_s=seconds)
def test_one_simulator_and_the_policy_take_turns(cpu_s: float, rest_s: float, each_s: float) -> None:
    net = network(cpu_s=cpu_s, rest_s=rest_s, each_s=each_s, spread=(1.0,))
    assert flow(net, 1, 64).decisions_per_s == pytest.approx(1 / (cpu_s + rest_s + each_s), rel=1e-6)


@settings(deadline=None, max_examples=60)
@given(
    cpu_s=seconds,
    rest_s=seconds,
    call_s=seconds,
    each_s=seconds,
    cores=st.integers(1, 8),
    policy_cores=st.sampled_from([0.0, 0.5, 1.0, 2.0]),
    calls=st.integers(1, 3),
    simulators=st.integers(1, 24),
    max_batch=st.integers(1, 32),
)
def test_no_flow_exceeds_what_cores_policy_and_simulators_could_do(
    cpu_s: float,
    rest_s: float,
    call_s: float,
    each_s: float,
    cores: int,
    policy_cores: float,
    calls: int,
    simulators: int,
    max_batch: int,
) -> None:
    net = network(
        cpu_s=cpu_s,
        rest_s=rest_s,
        call_s=call_s,
        each_s=each_s,
        cores=cores,
        policy_cores=policy_cores,
        calls=calls,
        spread=(1.0,),
    )
    batch = min(simulators, max_batch)
    found = flow(net, simulators, max_batch)
    policy = calls * batch / (call_s + batch * each_s)
    alone = simulators / (cpu_s + rest_s + call_s + each_s)
    slack = 1.1  # a window cuts through turns, at its beginning and its end
    assert 0 < found.decisions_per_s <= slack * min(cores / cpu_s, policy, alone)
    assert 1 <= found.mean_batch <= batch
    assert 0 <= found.policy_busy <= 1
    assert 0 <= found.cores_busy <= 1


@settings(deadline=None, max_examples=40)
@given(cpu_s=seconds, rest_s=seconds, call_s=seconds, each_s=seconds, simulators=st.integers(1, 16))
def test_twice_the_simulators_never_let_less_through(
    cpu_s: float, rest_s: float, call_s: float, each_s: float, simulators: int
) -> None:
    net = network(cpu_s=cpu_s, rest_s=rest_s, call_s=call_s, each_s=each_s)
    few, many = (flow(net, number, 64).decisions_per_s for number in (simulators, 2 * simulators))
    assert many >= 0.93 * few


def test_more_simulators_fill_the_batches_of_a_slow_policy() -> None:
    net = network(rest_s=0.1, call_s=0.05, each_s=0.005)
    assert flow(net, 4, 64).decisions_per_s < 30
    assert flow(net, 32, 64).decisions_per_s > 100


def test_a_policy_on_the_cores_slows_the_simulators_down() -> None:
    elsewhere = network(cpu_s=0.1, each_s=0.02, cores=2)
    here = network(cpu_s=0.1, each_s=0.02, cores=2, policy_cores=1.0)
    assert flow(elsewhere, 8, 64).decisions_per_s == pytest.approx(20, rel=0.05)
    assert flow(here, 8, 64).decisions_per_s == pytest.approx(2 / 0.12, rel=0.05)


def test_the_same_costs_give_the_same_flow() -> None:
    net = network(cpu_s=0.01, rest_s=0.02, call_s=0.03)
    assert flow.__wrapped__(net, 6, 4) == flow.__wrapped__(net, 6, 4)


def test_a_window_with_the_quick_tasks_is_corrected_for_the_plans() -> None:
    quick, slow, unseen = ("gym:x", 0), ("gym:x", 1), ("gym:x", 2)
    pieces = Log(turns=Counter({quick: 10, slow: 10}), cpu_s={quick: 1.0, slow: 3.0})
    window = Log(turns=Counter({quick: 90, slow: 10}), cpu_s={quick: 9.0, slow: 3.0}, chunks_s=[0.1] * 100)
    costs = Costs([pieces, window])
    assert costs.mean({quick: 1.0, slow: 1.0}) == pytest.approx(0.2)
    assert costs.mean({slow: 5.0, unseen: 70.0}) == pytest.approx(0.3)
    asked = Asked(simulators=4, turn_s=0.5, cpu_s=0.125, spread=(1.0,), elsewhere=0.0, log=window)
    even = as_demand([asked], 2, {quick: 1.0, slow: 1.0}, costs)
    assert even.cpu(4) == pytest.approx(0.125 + 0.2 - 0.12)
    assert even.turn(4) == pytest.approx(0.5 + 2 * (0.2 - 0.12))  # four on two cores
    same = as_demand([asked], 2, window.turns, costs)
    assert (same.cpu(4), same.turn(4)) == pytest.approx((0.125, 0.5))


# Forecasts


def test_a_run_of_one_worker_is_the_sum_of_its_parts() -> None:
    net = network(cpu_s=0.1, each_s=0.1)
    course = Course(
        build=Effort(cpu_s=2.0), reset=Effort(rest_s=1.0), decisions={("gym:x", 0): 10.0, ("gym:x", 1): 20.0}
    )
    told = forecast(specs(2, 3), course, lambda number: flow(net, 1, 1).decisions_per_s, 1, 4)
    assert told.builds == 2
    assert told.decisions == 90
    assert told.wall_s == pytest.approx(2 * 2.0 + 4 * 1.0 + 90 * 0.2, rel=0.01)


def test_builds_share_the_cores() -> None:
    net = network(cpu_s=0.001)
    four = choose(plan(net, tasks=4, episodes=1, build_s=3.0, decisions=1.0), 4)
    assert four.forecast.wall_s == pytest.approx(3.0, rel=0.02)
    crowded = choose(plan(structs.replace(net, cores=2), tasks=4, episodes=1, build_s=3.0, decisions=1.0), 4)
    assert crowded.forecast.wall_s == pytest.approx(6.0, rel=0.02)


def test_the_last_episodes_leave_workers_idle() -> None:
    net = network(rest_s=0.1)
    even, odd = (choose(plan(net, episodes=count), 4).forecast.wall_s for count in (4, 5))
    assert odd == pytest.approx(2 * even, rel=0.05)


# Recommendations


@settings(deadline=None, max_examples=30)
@given(
    cpu_s=seconds,
    rest_s=seconds,
    call_s=seconds,
    each_s=seconds,
    build_s=st.floats(0.0, 10.0),
    most=st.integers(1, 16),
    tasks=st.integers(1, 4),
)
def test_what_is_recommended_fits_and_room_for_more_never_makes_it_slower(
    cpu_s: float, rest_s: float, call_s: float, each_s: float, build_s: float, most: int, tasks: int
) -> None:
    net = network(cpu_s=cpu_s, rest_s=rest_s, call_s=call_s, each_s=each_s, cores=2)
    work = plan(net, tasks=tasks, episodes=6, build_s=build_s, decisions=8.0)
    few, many = recommend(work, most), recommend(work, 2 * most)
    assert few.workers <= min(most, len(work.specs))
    assert few.max_batch >= 1
    # Fewer workers are taken where they are nearly as quick.
    assert many.forecast.wall_s <= 1.2 * few.forecast.wall_s


def test_simulators_that_compute_need_no_more_workers_than_keep_the_cores_busy() -> None:
    choice = recommend(plan(network(cpu_s=0.1, each_s=0.01, cores=4)), 64)
    assert 4 <= choice.workers <= 8
    assert bound(choice, plan(network(cpu_s=0.1, each_s=0.01, cores=4)), None) == "simulators"


def test_a_slow_policy_gets_many_workers_and_is_what_binds() -> None:
    work = plan(network(rest_s=0.01, call_s=0.5, each_s=0.001))
    choice = recommend(work, 40)
    assert choice.workers >= 16
    assert bound(choice, work, None) == "policy"


def test_memory_binds_where_more_workers_would_be_quicker_and_do_not_fit() -> None:
    work = plan(network(rest_s=0.1))
    choice = recommend(work, 2)
    assert choice.workers == 2
    assert bound(choice, work, recommend(work, 8)) == "memory"
    assert bound(choice, work, None) == "simulators"


def test_building_binds_where_it_takes_longer_than_the_episodes() -> None:
    work = plan(network(cpu_s=0.001), tasks=4, episodes=1, build_s=5.0)
    assert bound(recommend(work, 4), work, None) == "start-up"


def test_batches_are_limited_only_where_smaller_ones_let_more_through() -> None:
    net = network(cpu_s=0.001, call_s=0.01, each_s=0.001)
    assert best_batch(net, 8) == 64
    assert best_batch(net, 200) == 200
    steep = structs.replace(net, supply=Supply(seconds=Curve(((1, 0.01), (4, 0.02), (8, 0.4), (16, 2.0)))))
    assert best_batch(steep, 16) == 4
    told = structs.replace(net, supply=Supply(seconds=Curve(((1, 0.01),)), most=1))
    assert best_batch(told, 16) == 1


def test_shards_bring_a_long_plan_under_the_limit() -> None:
    work = plan(network(cpu_s=0.1, cores=1), episodes=100, decisions=10.0)
    choice: Choice = recommend(work, 2)
    assert choice.forecast.wall_s == pytest.approx(100, rel=0.05)
    assert shards(work, choice, 1.0, 200.0) == 1
    assert shards(work, choice, 1.0, 60.0) == 2
    assert shards(work, choice, 70.0, 60.0) is None
