"""Rates, what bounds a run, and its end."""

from __future__ import annotations

import pytest

from rollout.display.base import Counters, TaskCounters, WorkerState
from rollout.display.rates import Bound, RateWindow, bound_by, eta_s, overall, whole_run


@pytest.mark.parametrize(
    ("policy_busy_s", "sim_busy_s", "workers", "bound"),
    [
        (9.5, 80.0, 16, Bound.POLICY),  # the policy never rests: faster simulators would only wait longer
        (6.0, 80.0, 16, Bound.SIMULATORS),  # half of the workers wait, and still all 8 cores simulate
        (6.0, 20.0, 16, Bound.POLICY),  # most workers wait, and most cores idle
        (5.0, 5.0, 1, Bound.SIMULATORS),  # one worker and the policy take turns
        (6.0, 4.0, 1, Bound.POLICY),
        (0.0, 1.0, 16, Bound.SIMULATORS),
        (0.1, 0.0, 16, Bound.POLICY),
    ],
)
def test_the_more_loaded_resource_bounds_the_run(policy_busy_s, sim_busy_s, workers, bound):
    busy = {"policy_busy_s": policy_busy_s, "sim_busy_s": sim_busy_s}
    assert bound_by(**busy, wall_s=10.0, workers=workers, cores=8) is bound


def test_nothing_bounds_a_run_in_which_nothing_happened():
    assert bound_by(policy_busy_s=0.0, sim_busy_s=0.0, wall_s=10.0, workers=4, cores=2) is None
    assert bound_by(policy_busy_s=1.0, sim_busy_s=1.0, wall_s=0.0, workers=4, cores=2) is None


def test_rates_show_the_last_seconds_and_not_the_average():
    counters, window = Counters(workers=[WorkerState.STEPPING]), RateWindow(span_s=10.0)
    assert window.observe(counters, 100.0) is None
    for second in range(1, 61):
        counters.steps += 100 if second <= 30 else 7
        counters.decisions += 10
        counters.batches += 4
        counters.policy_busy_s += 0.25
        rates = window.observe(counters, 100.0 + second)
    assert rates.steps_per_s == pytest.approx(7.0)
    assert rates.decisions_per_s == pytest.approx(10.0)
    assert rates.mean_batch == pytest.approx(2.5)
    assert rates.policy_busy == pytest.approx(0.25)


def test_a_window_shorter_than_the_refresh_interval_still_spans_two_samples():
    counters, window = Counters(), RateWindow(span_s=1.0)
    window.observe(counters, 0.0)
    for moment in (5.0, 10.0, 15.0):
        counters.steps += 50
        assert window.observe(counters, moment).steps_per_s == pytest.approx(10.0)


def test_a_window_without_a_batch_has_no_mean_batch_and_a_busy_share_never_passes_one():
    counters, window = Counters(), RateWindow()
    window.observe(counters, 0.0)
    counters.policy_busy_s = 30.0  # a forward that began long before the window ends in it
    rates = window.observe(counters, 1.0)
    assert rates.mean_batch is None
    assert rates.policy_busy == 1.0
    assert rates.bound is Bound.POLICY


def test_rates_of_the_whole_run_divide_by_all_of_it():
    rates = whole_run(Counters(steps=600, decisions=60, batches=20), 60.0)
    assert (rates.steps_per_s, rates.decisions_per_s, rates.mean_batch) == (10.0, 1.0, 3.0)
    assert whole_run(Counters(steps=600), 0.0) is None


def task(**changes):
    return TaskCounters(**{"suite": "s", "task": "t", "instruction": "", "planned": 10} | changes)


def test_the_end_is_unknown_until_an_episode_of_this_run_has_ended():
    assert eta_s(Counters(planned=10), 5.0) is None
    assert eta_s(Counters(planned=10, done=4, resumed=4), 5.0) is None


def test_the_end_follows_the_pace_of_this_run_and_ignores_what_a_resumed_one_found():
    assert eta_s(Counters(planned=10, done=4), 20.0) == pytest.approx(30.0)
    assert eta_s(Counters(planned=14, done=8, resumed=4), 20.0) == pytest.approx(30.0)


def test_episodes_under_way_count_half_towards_the_end():
    counters = Counters(planned=32, done=1, tasks={("s", 0): task(active=15, done=1)})
    assert eta_s(counters, 10.0) == pytest.approx((32 - 1 - 7.5) * 10.0 / 8.5)


def test_a_complete_run_ends_now():
    assert eta_s(Counters(planned=10, done=10), 20.0) == 0.0


def test_all_tasks_add_up_to_one_row():
    counters = Counters(
        planned=20,
        done=9,
        tasks={
            ("s", 0): task(done=5, successes=3, failures=1, errors=1),
            ("s", 1): task(done=4, successes=4, active=2),
        },
    )
    row = overall(counters)
    assert (row.task, row.planned, row.done) == ("all 2 tasks", 20, 9)
    assert (row.successes, row.failures, row.errors, row.active) == (7, 1, 1, 2)
