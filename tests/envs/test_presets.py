"""PushT and ALOHA: LeRobot's environments, frame for frame, with nothing rendered that nobody looks at."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from functools import cache, partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from preset_episodes import EVERY

import rollout
from rollout.envs.presets import AlohaSimulator, PushTSimulator
from rollout.envs.registry import missing_requirement, resolve
from rollout.errors import UsageError
from rollout.types import EpisodeSpec, ObservationRequest

EPISODES = Path(__file__).with_name("preset_episodes.py")
PUSHT = pytest.param("pusht:push_t", marks=pytest.mark.pusht)
ALOHA = [
    pytest.param(target, marks=[pytest.mark.aloha, pytest.mark.gl])
    for target in ("aloha:insertion", "aloha:transfer_cube")
]


@pytest.fixture(scope="module")
def episode(in_child: Callable[..., Any]) -> Callable[..., Any]:
    """What `preset_episodes.py` says, asked once."""
    return cache(partial(in_child, EPISODES))


@pytest.mark.parametrize(
    ("target", "suites"),
    [
        ("pusht", ("pusht", ("push_t",))),
        ("pusht:PushT-v0", ("pusht", ("push_t",))),
        ("gym_pusht/PushT-v0", ("pusht", ("push_t",))),
        ("aloha:AlohaInsertion-v0", ("aloha", ("insertion",))),
        ("aloha:AlohaTransferCube-v0", ("aloha", ("transfer_cube",))),
        ("gym_aloha/AlohaInsertion-v0", ("aloha", ("insertion",))),
        ("aloha", ("aloha", ("insertion", "transfer_cube"))),
        ("aloha:all", ("aloha", ("insertion", "transfer_cube"))),
    ],
)
def test_lerobots_and_gymnasiums_spellings_name_the_suites(target: str, suites: Any) -> None:
    assert resolve(target) == suites


def test_an_unknown_suite_is_told_with_the_nearest() -> None:
    with pytest.raises(UsageError, match="did you mean 'aloha:transfer_cube'"):
        resolve("aloha:transfer")


@pytest.mark.parametrize("adapter", [PushTSimulator, AlohaSimulator])
def test_a_missing_extra_is_told_with_its_command(adapter: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    line = missing_requirement(adapter)
    assert line == (
        f"{adapter.family}: gym_{adapter.family} is not installed; "
        f"run: pip install 'rollout-engine[{adapter.family}]'"
    )


@pytest.mark.parametrize(
    ("adapter", "name", "horizon", "instruction"),
    [
        (PushTSimulator, "push_t", 300, "Push the T-shaped block onto the T-shaped target."),
        (AlohaSimulator, "insertion", 400, "Insert the peg into the socket."),
        (
            AlohaSimulator,
            "transfer_cube",
            400,
            "Pick up the cube with the right arm and transfer it to the left arm.",
        ),
    ],
)
def test_tasks_have_lerobots_limits_and_its_data_sets_instructions(
    adapter: Any, name: str, horizon: int, instruction: str
) -> None:
    [task] = adapter.describe(name, {}).tasks
    assert (task.horizon, task.instruction, task.n_init_states) == (horizon, instruction, None)
    with pytest.raises(UsageError, match="height"):
        adapter.describe(name, {"height": "0"})


@pytest.mark.parametrize("target", [PUSHT, *ALOHA])
def test_an_episode_is_upstreams_picture_by_picture(episode: Callable[..., Any], target: str) -> None:
    theirs, ours = episode("upstream", target), episode("ours", target)
    n_seen = len(theirs["pictures"])
    looked_at = range(0, n_seen, EVERY)
    for what in ("pictures", "states"):
        assert [theirs[what][index] for index in looked_at] == [ours[what][index] for index in looked_at]
        assert {ours[what][index] for index in range(n_seen) if index not in looked_at} == {None}
    assert len(set(theirs["pictures"])) > n_seen / 2  # something moves
    assert ours["scenes"] == theirs["scenes"]
    assert ours["rewards"] == pytest.approx(theirs["rewards"], abs=1e-14)
    assert ours["successes"] == theirs["successes"]
    assert (ours["film"], ours["size"]) == (theirs["film"], theirs["size"])


@pytest.mark.parametrize("target", [PUSHT, *ALOHA])
def test_looking_changes_nothing(episode: Callable[..., Any], target: str) -> None:
    seen, unseen = episode("ours", target), episode("unseen", target)
    for what in ("states", "scenes", "rewards"):
        assert seen[what] == unseen[what]


@pytest.mark.pusht
def test_pushts_block_is_pushed(episode: Callable[..., Any]) -> None:
    scenes = episode("ours", "pusht:push_t")["scenes"]
    assert max(abs(after - before) for before, after in zip(scenes[0], scenes[-1], strict=True)) > 5


@pytest.mark.parametrize("target", [PUSHT, *ALOHA])
def test_success_is_what_upstream_calls_success(episode: Callable[..., Any], target: str) -> None:
    before, after = episode("solved", target)
    assert before[1:] == [False, False, False]
    assert before[0] < after[0] == (1.0 if target.startswith("pusht") else 4.0)
    assert after[1:] == [True, True, False]


@pytest.mark.pusht
def test_a_reward_of_pusht_does_not_depend_on_addresses(episode: Callable[..., Any]) -> None:
    rewards = episode("rewards")
    assert len(rewards["ours"]) == 300
    assert len(set(rewards["ours"])) == 1
    assert set(rewards["ours"]) <= set(rewards["theirs"])
    assert rewards["theirs"] == pytest.approx(rewards["ours"], abs=1e-14)


@pytest.mark.pusht
def test_a_video_of_pusht_begins_without_the_last_episodes_action(episode: Callable[..., Any]) -> None:
    first, second = episode("first_film", "pusht:push_t")
    assert first == second


@pytest.mark.aloha
def test_aloha_opens_no_gl_context_where_nothing_reads_a_camera(episode: Callable[..., Any]) -> None:
    assert episode("blind", "aloha:insertion") == []


@pytest.mark.pusht
def test_sizes_of_pictures_are_options() -> None:
    options = {"height": "40", "width": "48"}
    simulator = PushTSimulator(PushTSimulator.describe("push_t", options), 0, options)
    simulator.build()
    spec = EpisodeSpec(suite="pusht:push_t", task="push_t", task_id=0, episode=0, seed=1, horizon=10)
    seen = simulator.reset(spec, ObservationRequest())
    assert seen["observation.images.image"].shape == (40, 48, 3)
    assert seen["observation.state"].dtype == np.float32
    assert simulator.info.fps == 10
    assert simulator.info.observation_space["observation.images.image"].shape == (40, 48, 3)


@pytest.mark.pusht
def test_the_camera_has_the_name_that_the_policy_was_trained_with() -> None:
    options = {"camera.image": "camera1", "empty_cameras": "1"}
    simulator = PushTSimulator(PushTSimulator.describe("push_t", options), 0, options)
    simulator.build()
    spec = EpisodeSpec(suite="pusht:push_t", task="push_t", task_id=0, episode=0, seed=3, horizon=5)
    seen = simulator.reset(spec, ObservationRequest())
    assert "observation.images.image" not in seen
    assert seen["observation.images.camera1"].shape == (96, 96, 3)
    assert seen["observation.images.camera1"].max() == 255
    assert seen["observation.images.empty_camera_0"].shape == (96, 96, 3)
    assert seen["observation.images.empty_camera_0"].max() == 0
    simulator.close()


@pytest.mark.aloha
@pytest.mark.gl
def test_a_run_of_both_tasks_is_the_same_in_one_worker_and_in_two() -> None:
    one, two = (
        rollout.run("random", "aloha:all", episodes=2, horizon=12, workers=workers) for workers in (1, 2)
    )
    assert [episode.suite for episode in one.episodes] == ["aloha:insertion"] * 2 + [
        "aloha:transfer_cube"
    ] * 2
    assert [episode.digest for episode in one.episodes] == [episode.digest for episode in two.episodes]
    assert len({episode.digest for episode in one.episodes}) == 4
    assert {(episode.success, episode.truncated, episode.steps) for episode in one.episodes} == {
        (False, True, 12)
    }
