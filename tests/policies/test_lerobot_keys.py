"""Which of our keys stands for which input of a checkpoint: no LeRobot is needed to know."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

import rollout
from rollout.errors import UsageError
from rollout.policies.lerobot_keys import wanted_keys

PICTURE = SimpleNamespace(type=SimpleNamespace(value="VISUAL"), shape=(3, 8, 8))
STATE = SimpleNamespace(type=SimpleNamespace(value="STATE"), shape=(4,))


def keys(
    targets: tuple[str, ...],
    *images: str,
    saved: dict[str, str] | None = None,
    rename: dict[str, str] | None = None,
    absent: tuple[str, ...] = (),
    empty_cameras: bool = False,
    **options: str,
) -> list[str]:
    inputs: dict[str, Any] = {**dict.fromkeys(images, PICTURE), "observation.state": STATE}
    config = rollout.EvalConfig.create(
        targets=targets, options={name.replace("_", "."): value for name, value in options.items()}
    )
    found = wanted_keys(inputs, saved or {}, rename or {}, absent, config, empty_cameras=empty_cameras)
    assert [each.name for each in found][-1] == "observation.state"
    return [each.key.removeprefix("observation.images.") for each in found[:-1]]


@pytest.mark.parametrize(
    ("target", "camera"),
    [
        ("metaworld:mt10", "corner2"),
        ("pusht:PushT-v0", "image"),
        ("gym_pusht/PushT-v0", "image"),
        ("aloha:insertion", "top"),
        ("libero:spatial", "image"),
        ("libero_spatial", "image"),
        ("gym:toys:toy/Count-v0", "image"),
    ],
)
def test_the_lone_picture_of_lerobots_environments_is_the_cameras(target: str, camera: str) -> None:
    assert keys((target,), "observation.image") == [camera]


def test_the_one_camera_that_a_policy_reads_is_the_one_that_there_is() -> None:
    assert keys(("metaworld:mt10",), "observation.images.front") == ["corner2"]
    assert keys(("aloha:insertion",), "observation.images.cam_high") == ["top"]
    assert keys(("libero:goal",), "observation.images.front") == ["front"]  # it has two
    assert keys(("metaworld:mt10",), "observation.images.a", "observation.images.b") == ["a", "b"]


def test_cameras_have_the_names_that_the_options_give_them() -> None:
    assert keys(("metaworld:mt10",), "observation.image", camera="corner3") == ["corner3"]
    assert keys(("metaworld:mt10",), "observation.image", camera_corner2="eye") == ["eye"]
    assert keys(("pusht:push_t",), "observation.image", camera_image="front") == ["front"]


def test_names_are_matched_by_the_users_map_first_then_by_the_checkpoints() -> None:
    front, camera1 = "observation.images.front", "observation.images.camera1"
    assert keys(("libero:goal",), camera1, saved={front: camera1}) == ["front"]
    for name in (front, camera1):  # either of its names
        rename = {"observation.images.image2": name}
        assert keys(("libero:goal",), camera1, saved={front: camera1}, rename=rename) == ["image2"]


def test_empty_cameras_are_asked_for_only_where_the_policy_does_not_fill_them() -> None:
    images = ("observation.images.image", "observation.images.empty_camera_0")
    assert keys(("libero:goal",), *images, empty_cameras=True) == ["image"]
    assert keys(("libero:goal",), *images) == ["image", "empty_camera_0"]
    assert keys(("libero:goal",), *images, absent=images[1:]) == ["image"]


def test_targets_that_name_the_camera_differently_cannot_share_a_run() -> None:
    with pytest.raises(UsageError, match=r"corner2 and observation\.images\.top"):
        keys(("metaworld:mt10", "aloha:insertion"), "observation.image")
