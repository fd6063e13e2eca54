"""`rollout.results.export`: the schema of LeRobot 0.6.1, key for key."""

from __future__ import annotations

import json
from pathlib import Path

import msgspec
import numpy as np
import pytest
from sample_records import at, result

from rollout.results.efficiency import Limit
from rollout.results.export import EVAL_INFO, eval_info, task_group, write_eval_info
from rollout.results.summary import Timing
from rollout.types import Outcome

TIMING = Timing(
    wall_s=12.0,
    episodes_per_s=0.5,
    steps_per_s=None,
    decisions=0,
    steps=0,
    mean_batch=None,
    policy_busy=0.0,
    worker_utilisation=0.0,
    bound_by=Limit.START_UP,
)


def test_the_file_has_lerobots_keys_and_strict_json(tmp_path: Path) -> None:
    results = [
        result(1, Outcome.FAILURE, video="videos/b.mp4"),
        result(0, video="videos/a.mp4"),
        at(("libero:spatial", 3, 0), sum_reward=None, max_reward=None, nonfinite_reward=True),
    ]
    write_eval_info(tmp_path, results, TIMING)
    videos = [str(tmp_path / "videos" / name) for name in ("a.mp4", "b.mp4")]
    text = (tmp_path / EVAL_INFO).read_text(encoding="utf-8")
    assert json.loads(text, parse_constant=pytest.fail) == {
        "per_task": [
            {
                "task_group": "libero_spatial",
                "task_id": 3,
                "metrics": {
                    "sum_rewards": [None],
                    "max_rewards": [None],
                    "successes": [True],
                    "video_paths": [],
                },
            },
            {
                "task_group": "mt10",
                "task_id": 0,
                "metrics": {
                    "sum_rewards": [0.0, 1.5],
                    "max_rewards": [1.0, 1.0],
                    "successes": [True, False],
                    "video_paths": videos,
                },
            },
        ],
        "per_group": {
            "libero_spatial": {
                "avg_sum_reward": None,
                "avg_max_reward": None,
                "pc_success": 100.0,
                "n_episodes": 1,
                "video_paths": [],
            },
            "mt10": {
                "avg_sum_reward": 0.75,
                "avg_max_reward": 1.0,
                "pc_success": 50.0,
                "n_episodes": 2,
                "video_paths": videos,
            },
        },
        "overall": {
            "avg_sum_reward": 0.75,
            "avg_max_reward": 1.0,
            "pc_success": pytest.approx(200 / 3),
            "n_episodes": 3,
            "video_paths": videos,
            "eval_s": 12.0,
            "eval_ep_s": 2.0,
        },
    }


def test_aggregates_equal_lerobots_nanmean_over_episodes() -> None:
    results = [result(episode, Outcome.SUCCESS if episode % 3 else Outcome.FAILURE) for episode in range(8)]
    overall = eval_info(results, None).overall
    assert overall.pc_success == np.nanmean([item.success for item in results]) * 100
    assert overall.avg_sum_reward == np.nanmean([item.sum_reward for item in results])
    assert (overall.eval_s, overall.eval_ep_s) == (None, None)


def test_errors_are_in_no_list_and_no_count_but_their_task_stays() -> None:
    results = [at(("s", 0, 0)), at(("s", 0, 1), Outcome.ERROR), at(("t", 1, 0), Outcome.ERROR)]
    info = eval_info(results, TIMING)
    assert [(task.task_group, task.task_id, task.metrics.successes) for task in info.per_task] == [
        ("s", 0, [True]),
        ("t", 1, []),
    ]
    assert info.per_group["t"].pc_success is None
    assert info.per_group["t"].avg_sum_reward is None
    assert (info.overall.n_episodes, info.overall.pc_success) == (1, 100.0)


def test_an_unknown_outcome_keeps_the_lists_aligned_and_enters_no_rate() -> None:
    info = eval_info([result(0, Outcome.UNKNOWN), result(1, Outcome.FAILURE)], None)
    assert info.per_task[0].metrics.successes == [None, False]
    assert info.per_task[0].metrics.sum_rewards == [0.0, 1.5]
    assert info.overall.pc_success == 0.0
    assert info.overall.n_episodes == 2


def test_an_empty_run_exports() -> None:
    info = eval_info([], msgspec.structs.replace(TIMING, episodes_per_s=None))
    assert (info.per_task, info.per_group) == ([], {})
    assert (info.overall.pc_success, info.overall.n_episodes, info.overall.eval_ep_s) == (None, 0, None)


@pytest.mark.parametrize(
    ("suite", "group"),
    [
        ("libero:spatial", "libero_spatial"),
        ("libero:10", "libero_10"),
        ("metaworld:very_hard", "very_hard"),
        ("metaworld:push-v3", "push-v3"),
        ("gym:gym_pusht/PushT-v0", "pusht"),
        ("gym:gym_pusht:gym_pusht/PushT-v0", "pusht"),
        ("gym:CartPole-v1", "CartPole-v1"),
        ("gym:badenvs:bad/NeverEnds-v0", "bad/NeverEnds-v0"),
        ("robocasa:kitchen", "robocasa_kitchen"),
    ],
)
def test_suites_are_named_as_lerobot_names_them(suite: str, group: str) -> None:
    assert task_group(suite) == group
