"""Rates, what bounds a run, and its end."""

from __future__ import annotations

import pytest

from rollout.display.base import Counters, TaskCounters, WorkerState
from rollout.display.rates import RateWindow, eta_s, overall, whole_run
from rollout.display.text import eta
from rollout.results.efficiency import Limit


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
    assert rates.bound is Limit.POLICY


def test_rates_of_the_whole_run_divide_by_all_of_it():
    rates = whole_run(Counters(steps=600, decisions=60, batches=20), 60.0)
    assert (rates.steps_per_s, rates.decisions_per_s, rates.mean_batch) == (10.0, 1.0, 3.0)
    assert whole_run(Counters(steps=600), 0.0) is None


def task(**changes):
    return TaskCounters(**{"suite": "s", "task": "t", "instruction": "", "planned": 10} | changes)


def test_the_end_is_unknown_until_a_step_of_this_run_was_taken():
    assert eta_s(Counters(planned=10, most_steps=1000), 5.0) is None
    assert eta_s(Counters(planned=10, most_steps=1000, done=4, resumed=4), 5.0) is None


def test_until_an_episode_has_ended_each_is_expected_to_last_to_its_horizon():
    counters = Counters(planned=10, done=4, resumed=4, most_steps=600, steps=150)
    assert eta_s(counters, 5.0) == pytest.approx(15.0)
    assert eta(counters, 5.0) == "eta at most 15 s"
    counters.done += 1
    assert eta(counters, 5.0) == "eta 25 s"


def sampled(counters: Counters, **rises: float) -> Limit | None:
    """What binds over a second in which `counters` rose by `rises`."""
    window = RateWindow()
    window.observe(counters, 0.0)
    for name, rise in rises.items():
        setattr(counters, name, getattr(counters, name) + rise)
    rates = window.observe(counters, 1.0)
    assert rates is not None
    return rates.bound


def busy(*states: WorkerState, **changes: float) -> Counters:
    return Counters(workers=list(states), planned=100, tasks={("s", 0): task(active=len(states))}, **changes)


def test_while_most_workers_build_that_binds():
    counters = busy(*[WorkerState.BUILDING] * 2, WorkerState.STARTING, WorkerState.STEPPING)
    assert sampled(counters, sim_busy_s=1.0) is Limit.START_UP


def test_while_workers_have_nothing_left_to_begin_the_last_episodes_bind():
    counters = busy(WorkerState.STEPPING, WorkerState.IDLE)
    counters.tasks["s", 0].active, counters.done = 1, 99
    assert sampled(counters, sim_busy_s=1.0) is Limit.LONGEST
    counters.done = 98  # one more is to begin, and nobody does: a simulator would have to be built for it
    assert sampled(counters, sim_busy_s=1.0) is not Limit.LONGEST


def test_nothing_binds_where_nothing_happens():
    assert sampled(busy(WorkerState.STEPPING)) is None


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
