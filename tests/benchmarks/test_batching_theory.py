"""The bound of the batching workload is a bound."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.batching_theory import best_rule, demand, simulated_s
from benchmarks.batching_work import Cores, Curve, Drawn, draw

TWO = (Drawn(1.0, (2.0, 2.0)), Drawn(1.0, (2.0, 2.0)))
ONE_AND_ONE = Curve(1.0, 1.0)  # t(1) = 2, t(2) = 3


def test_the_bound_of_a_case_done_by_hand() -> None:
    asked = demand(TWO, ONE_AND_ONE, cores=1, simulators=2)
    assert asked.decisions == 4
    assert asked.cores_s == 10.0
    assert asked.longest_s == 5.0 + 2 * 2.0
    assert asked.policy_full_s == 2 * 3.0
    # At least 2 · 4 / 2 - 1 batches where two in a row have at most two members together, as an idle policy between
    # them would cost the shortest chunk, 2, where a batch more costs a, 1.
    assert asked.policy_s == 4 * 1.0 + 3 * 1.0
    assert asked.bound_s == 10.0


def test_idling_for_full_batches_is_the_bound_where_a_batch_costs_more_than_a_chunk() -> None:
    asked = demand(TWO, Curve(50.0, 1.0), cores=1, simulators=2)
    assert asked.policy_s == 4 * 1.0 + 2 * 50.0 + 1 * 2.0


def test_the_greedy_rule_of_a_case_done_by_hand() -> None:
    # Resets until 1 and 2 on the one core; from then on the policy answers one while the core steps the other, until
    # the last chunk ends at 11.
    assert simulated_s(TWO, ONE_AND_ONE, cores=1, simulators=2) == 11.0


def test_work_gets_the_first_core_that_is_free() -> None:
    cores = Cores(2)
    assert [cores.end_of(work_s, now=0.0) for work_s in (3.0, 1.0, 1.0, 1.0)] == [3.0, 1.0, 2.0, 3.0]
    assert cores.end_of(1.0, now=10.0) == 11.0


def test_what_is_drawn_is_the_same_at_any_speed() -> None:
    slow, fast = draw(20), draw(20, speed=4.0)
    assert [each.total_s for each in fast] == pytest.approx([each.total_s / 4.0 for each in slow])
    assert len({len(each.chunks_s) for each in slow}) > 3


TIMES = st.floats(0.01, 5.0)
EPISODES = st.lists(
    st.builds(Drawn, TIMES, st.lists(TIMES, min_size=1, max_size=6).map(tuple)), min_size=1, max_size=12
)


@given(EPISODES, st.builds(Curve, TIMES, TIMES), st.integers(1, 4), st.integers(1, 8), st.integers(1, 8))
def test_no_rule_is_faster_than_the_bound(
    episodes: list[Drawn], curve: Curve, cores: int, simulators: int, fewest: int
) -> None:
    taken_s = simulated_s(episodes, curve, cores, simulators, fewest)
    asked = demand(episodes, curve, cores, simulators)
    assert max(asked.bound_s, asked.full_bound_s) <= taken_s * (1 + 1e-9)
    assert best_rule(episodes, curve, cores, simulators)[0] <= simulated_s(episodes, curve, cores, simulators)
