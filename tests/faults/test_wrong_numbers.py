"""Environments that lead a careless harness to a wrong number, and their exact results (`badenvs`, "wrong numbers")."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import badenvs
from misbehaving import Acting, column, errors, logged, measure
from rollout import PolicySpec, Request
from rollout.errors import UsageError
from rollout.types import Outcome


@pytest.mark.parametrize(
    ("name", "settings", "expected"),
    [
        ("SuccessFlicker", {}, {"success_rate": 1.0, "mean_steps": 10}),
        ("NoSuccessKey", {}, {"success_rate": None, "ci95": None, "mean_return": 1.0, "mean_steps": 5}),
        ("SuccessTypes", {}, {"success_rate": 1.0, "mean_steps": 4}),
        ("LengthBias", {}, {"success_rate": 0.5, "mean_steps": 31.5, "mean_return": 0.5}),
        ("LengthBias", {"workers": 6}, {"success_rate": 0.5, "mean_steps": 31.5}),
        ("FailTerminate", {"episodes": 9}, {"success_rate": 3 / 9, "n_success": 3, "mean_steps": 14 / 3}),
        ("DoneTypes", {"episodes": 10}, {"success_rate": 1.0, "mean_steps": 5}),
        ("StepAfterDone", {}, {"success_rate": 1.0, "mean_steps": 5}),
        ("NaNReward", {"episodes": 7}, {"mean_return": 5.0, "mean_steps": 5}),
        ("DiscreteAction", {}, {"mean_return": 0.0, "mean_steps": 4, "n_error": 0}),
        ("StrictSeed", {}, {"mean_steps": 2, "n_error": 0}),
        ("StrictAction", {}, {"success_rate": 1.0, "mean_steps": 5}),
    ],
)
def test_the_exact_numbers(name: str, settings: Mapping[str, Any], expected: Mapping[str, Any]) -> None:
    report = measure(name, **settings)
    assert errors(report) == {}
    overall = report.summary.overall
    assert {field: getattr(overall, field) for field in expected} == expected


def test_a_success_in_passing_counts_and_is_no_termination() -> None:
    report = measure("SuccessFlicker", episodes=2)
    assert column(report, "terminated") == [False, False]
    assert column(report, "truncated") == [True, True]


def test_an_episode_without_a_success_signal_has_an_unknown_outcome() -> None:
    assert set(column(measure("NoSuccessKey", episodes=2), "outcome")) == {Outcome.UNKNOWN}


def test_a_goal_that_holds_at_reset_is_told_recorded_and_counted(tmp_path: Path) -> None:
    report = measure("SuccessAtReset", out=tmp_path)
    assert column(report, "success") == [False, True] * 3
    assert column(report, "success_at_reset") == [False, True] * 3
    assert report.summary.success_at_reset == 3
    [warning] = report.summary.warnings
    assert "the goal already holds when an episode begins" in warning
    summary = json.loads((tmp_path / "summary.json").read_text())
    assert (summary["success_at_reset"], summary["warnings"]) == (3, [warning])
    lines = [json.loads(line) for line in (tmp_path / "episodes.jsonl").read_text().splitlines()]
    assert [line["success_at_reset"] for line in lines[1:]] == [False, True] * 3


def test_every_episode_of_a_batch_is_told_its_own_instruction() -> None:
    def act(request: Request) -> Any:
        return [badenvs.PerEpisodeTask.code(request.observation["task"]), 0.0]

    policy = Acting(act, together=4)
    report = measure("PerEpisodeTask", policy, episodes=15, workers=4)
    assert report.success_rate == 1.0
    assert max(policy.sizes) > 1  # else nothing was mixed up because nothing was mixed
    assert {seen["task"] for seen in policy.seen.values()} == {
        f"pick up the {colour} cube" for colour in badenvs.PerEpisodeTask.COLOURS
    }


@pytest.mark.parametrize("workers", [1, 3])
def test_the_old_seed_method_decides_the_episode_whatever_a_worker_played_before(
    workers: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = tmp_path / "log"
    monkeypatch.setenv("BADENVS_LOG", str(log))
    report = measure("LegacySeed", workers=workers, episodes=9)
    expected = [bool(np.random.default_rng(seed).random() < 0.5) for seed in range(9)]
    assert column(report, "success") == expected
    assert sorted(line["seed"] for line in logged(log, "legacy_seed")) == list(range(9))
    assert sorted(line["key"] for line in logged(log, "reset")) == list(range(9))


def test_rewards_that_are_not_finite_are_null_in_strict_json_and_told(tmp_path: Path) -> None:
    report = measure("NaNReward", out=tmp_path)
    assert column(report, "sum_reward") == [5.0, None, None] * 2
    assert column(report, "nonfinite_reward") == [False, True, True] * 2
    [warning] = report.summary.warnings
    assert "a reward is not finite" in warning
    for name in ("episodes.jsonl", "summary.json", "eval_info.json"):
        for text in (
            (tmp_path / name).read_text().splitlines()
            if name.endswith("l")
            else [(tmp_path / name).read_text()]
        ):
            json.loads(text, parse_constant=pytest.fail)


def test_a_reward_of_two_values_is_that_episodes_error_and_all_other_shapes_are_numbers() -> None:
    report = measure("RewardShapes", episodes=7)
    assert column(report, "sum_reward") == [5.0, 5.0, 5.0, 5.0, 10.0, 10.0, None]
    assert errors(report) == {6: "ValueError: the environment's reward has shape (2,), but must be one value"}


def test_an_environment_that_never_ends_is_cut_at_the_horizon_and_refused_without_one() -> None:
    report = measure("NeverEnds", horizon=20)
    assert column(report, "steps") == [20] * 6
    assert (set(column(report, "truncated")), set(column(report, "terminated"))) == ({True}, {False})
    assert report.summary.overall.mean_return == pytest.approx(2.0)
    with pytest.raises(UsageError, match="has no time limit of its own: give one with --horizon N"):
        measure("NeverEnds", horizon=None)
    past = errors(measure("NeverEnds", horizon=25, episodes=2))
    assert past == dict.fromkeys((0, 1), "ValueError: maximum path length allowed has been exceeded")


def test_a_chunk_is_dropped_where_the_episode_ends(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log = tmp_path / "log"
    monkeypatch.setenv("BADENVS_LOG", str(log))
    policy = Acting(lambda request: np.zeros((8, 2), np.float32), chunk_size=8, n_action_steps=8)
    report = measure("StepAfterDone", policy)
    assert (report.success_rate, set(column(report, "steps"))) == (1.0, {5})
    assert len(policy.seen) == 6  # one decision each
    assert (len(logged(log, "end")), logged(log, "step_after_end")) == (6, [])


def test_settle_steps_come_after_the_reset_and_count_nowhere() -> None:
    options = {"settle_steps": "10", "settle_action": "[0,-1]"}
    policy = Acting()
    report = measure("SettleSteps", policy, horizon=20, options=options, episodes=2)
    assert column(report, "success") == [True, True]
    assert column(report, "steps") == [20, 20]
    assert sorted(policy.seen) == [(episode, step) for episode in (0, 1) for step in range(20)]
    # The environment was stepped ten times before the policy was asked.
    assert next(seen["observation.state"].item() for seen in policy.seen.values()) == 10.0


@pytest.mark.parametrize(
    "options",
    [
        {"settle_steps": "9", "settle_action": "[0,-1]"},
        {"settle_steps": "10"},
        {},
    ],  # too few, the wrong ones, none
)
def test_other_settle_steps_spoil_that_scene(options: dict[str, str]) -> None:
    report = measure("SettleSteps", horizon=20, options=options, episodes=1)
    assert column(report, "success") == [False]


def test_initial_states_are_set_after_the_reset_one_by_one() -> None:
    report = measure("InitStateOrder", options={"init_states": "6"})
    assert report.success_rate == 1.0
    assert column(report, "init_state") == [0, 1, 2, 3, 4, 5]
    again = measure("InitStateOrder", options={"init_states": "4"})
    assert column(again, "init_state") == [0, 1, 2, 3, 0, 1]
    assert column(again, "success") == [True] * 4 + [False] * 2  # state e mod 4, where the seed goes on


def test_pictures_are_delivered_the_way_round_that_they_have() -> None:
    policy = Acting()
    measure("QuadrantImage", policy, episodes=1)
    image = policy.seen[0, 0]["observation.images.agentview_image"]
    assert [image[0, 0, 0], image[0, -1, 0], image[-1, 0, 0], image[-1, -1, 0]] == [10, 20, 30, 40]


@pytest.mark.parametrize(("action", "total"), [(10, 0.0), (11, 2.0), (12, 4.0)])
def test_discrete_actions_are_whole_numbers_that_a_dict_knows(action: int, total: float) -> None:
    report = measure("DiscreteAction", Acting(lambda request: np.array([action])), episodes=1)
    assert (errors(report), column(report, "sum_reward")) == ({}, [total])


@pytest.mark.parametrize("given", ["float64 lists", "one reused buffer", "a strided view"])
def test_actions_reach_the_environment_as_fresh_arrays_of_its_space(given: str) -> None:
    buffer = np.zeros((1, 2), np.float32)

    class Reusing:
        spec = PolicySpec(inline=True)

        def infer(self, requests: Any) -> Any:
            buffer[:] = math.sin(requests[0].step)
            wide = np.repeat(buffer, 2, 1)[:, ::-2]
            return [
                {"float64 lists": buffer.tolist(), "one reused buffer": buffer, "a strided view": wide}[given]
            ]

    report = measure("StrictAction", Reusing(), episodes=2)
    assert (errors(report), report.success_rate) == ({}, 1.0)


@pytest.mark.parametrize("seed", [0, 2**32 - 1])
def test_seeds_are_plain_integers(seed: int) -> None:
    report = measure("StrictSeed", seed=seed, episodes=1)
    assert (errors(report), column(report, "seed")) == ({}, [seed])
