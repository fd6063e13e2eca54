"""`rollout.results.summary`: what enters a rate, what does not, and that the order does not matter."""

from __future__ import annotations

import json
import math
import random
from pathlib import Path

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sample_records import KEYS, at, result

from rollout.errors import ResultsError
from rollout.results.efficiency import Limit
from rollout.results.stats import wilson
from rollout.results.summary import SUMMARY, Summary, Timing, summarize, write_summary
from rollout.types import EpisodeResult, Outcome

TIMING = Timing(
    wall_s=12.5,
    episodes_per_s=0.5,
    steps_per_s=math.nan,
    decisions=40,
    steps=400,
    mean_batch=3.5,
    policy_busy=0.25,
    worker_utilisation=0.75,
    bound_by=Limit.SIMULATORS,
)


def test_an_error_enters_no_rate_and_no_mean() -> None:
    good = [result(0), result(1), result(2, Outcome.FAILURE)]
    with_errors = [*good, result(3, Outcome.ERROR, steps=999, sum_reward=1e9), result(4, Outcome.ERROR)]
    stats, clean = summarize(with_errors, 5).overall, summarize(good, 3).overall
    assert (stats.n_episodes, stats.n_error, stats.n_unknown) == (5, 2, 0)
    assert (stats.n_success, stats.n_failure) == (2, 1)
    assert stats.success_rate == clean.success_rate == 2 / 3
    assert stats.ci95 == clean.ci95 == wilson(2, 3)
    assert stats.mean_return == clean.mean_return == 1.5
    assert stats.mean_steps == clean.mean_steps == 11.0


def test_an_unknown_outcome_enters_the_means_but_no_rate() -> None:
    stats = summarize([result(0, Outcome.UNKNOWN), result(1, Outcome.UNKNOWN), result(2)], 3).overall
    assert (stats.n_unknown, stats.n_success) == (2, 1)
    assert stats.success_rate == 1.0
    assert stats.mean_steps == 11.0


@pytest.mark.parametrize("results", [[], [result(0, Outcome.ERROR)]])
def test_without_a_measured_episode_everything_is_null(results: list[EpisodeResult]) -> None:
    stats = summarize(results, 1).overall
    assert (stats.success_rate, stats.ci95, stats.mean_return, stats.mean_steps) == (None, None, None, None)


def test_without_a_success_signal_only_the_rate_is_null() -> None:
    stats = summarize([result(0, Outcome.UNKNOWN)], 1).overall
    assert (stats.success_rate, stats.ci95, stats.mean_return, stats.mean_steps) == (None, None, 0.0, 10.0)


def test_a_return_that_is_not_finite_is_left_out_of_its_mean_alone() -> None:
    stats = summarize([result(1), result(3, sum_reward=None, nonfinite_reward=True)], 2).overall
    assert stats.mean_return == 1.5
    assert stats.mean_steps == 12.0
    assert stats.success_rate == 1.0


def test_suites_and_tasks_add_up_to_the_whole() -> None:
    results = [at(key, Outcome.FAILURE if key[2] == 0 else Outcome.SUCCESS) for key in KEYS]
    results += [at(("libero:goal", 0, 0), Outcome.ERROR)]
    summary = summarize(results, 7, {("metaworld:mt10", 1): "push the puck"})
    assert list(summary.suites) == ["libero:goal", "metaworld:mt10"]
    assert summary.suites["libero:goal"].n_error == summary.overall.n_error == 1
    assert summary.suites["metaworld:mt10"].n_episodes == 6
    task = summary.tasks["task-1"]
    assert (task.suite, task.task, task.task_id) == ("metaworld:mt10", "task-1", 1)
    assert task.instruction == "push the puck"
    assert (task.n_success, task.n_failure, task.success_rate) == (2, 1, 2 / 3)
    assert sum(task.n_episodes for task in summary.tasks.values()) == summary.overall.n_episodes == 7


def test_tasks_that_share_a_name_are_told_apart_by_suite_and_then_by_index() -> None:
    results = [
        at(("a", 0, 0)),
        at(("b", 0, 0)),
        result(0, suite="b", task_id=1, task="alone"),
        result(0, suite="c", task_id=0, task="twice"),
        result(0, suite="c", task_id=1, task="twice"),
    ]
    assert list(summarize(results, 5).tasks) == ["a/task-0", "b/task-0", "alone", "c/twice/0", "c/twice/1"]


def test_a_run_is_complete_once_every_planned_episode_is_on_record() -> None:
    assert not summarize([result(0)], 2).complete
    assert summarize([result(0), result(1, Outcome.ERROR)], 2).complete


@settings(deadline=None)
@given(
    st.lists(st.tuples(st.integers(0, 2), st.sampled_from(Outcome), st.floats(-1e6, 1e6)), max_size=30),
    st.integers(),
)
def test_the_summary_does_not_depend_on_the_order_of_the_records(
    drawn: list[tuple[int, Outcome, float]], seed: int
) -> None:
    results = [
        at(("s", task_id, episode), outcome, sum_reward=value)
        for episode, (task_id, outcome, value) in enumerate(drawn)
    ]
    shuffled = list(results)
    random.Random(seed).shuffle(shuffled)
    encoded = [msgspec.json.encode(summarize(order, 30)) for order in (results, shuffled)]
    assert encoded[0] == encoded[1]


def test_the_file_is_strict_json_with_the_names_of_the_contract(tmp_path: Path) -> None:
    instructions = {("metaworld:mt10", 0): "reach \ud800"}
    summary = summarize([result(0), result(1, Outcome.FAILURE)], 2, instructions, TIMING)
    write_summary(tmp_path, summary)
    text = (tmp_path / SUMMARY).read_text(encoding="utf-8")
    data = json.loads(text, parse_constant=pytest.fail)
    names = {"overall", "suites", "tasks", "planned", "complete", "clipped_actions", "success_at_reset"}
    names |= {"warnings", "timing", "bound", "eta", "shares", "protocol"}
    assert set(data) == names
    assert data["overall"] == {
        "n_episodes": 2,
        "n_success": 1,
        "n_failure": 1,
        "n_error": 0,
        "n_unknown": 0,
        "success_rate": 0.5,
        "ci95": list(wilson(1, 2) or ()),
        "mean_return": 0.75,
        "mean_steps": 10.5,
    }
    assert data["tasks"]["reach-v3"]["instruction"] == "reach \\ud800"
    assert data["timing"]["steps_per_s"] is None
    assert text.startswith('{\n  "overall": {\n')
    assert msgspec.json.decode(text, type=Summary).suites == summary.suites


def test_a_summary_that_cannot_be_written_is_one_clear_line(tmp_path: Path) -> None:
    with pytest.raises(ResultsError, match=r"^cannot write .*summary.json: No such file or directory$"):
        write_summary(tmp_path / "gone", summarize([], 0))
