"""Observations that are hard to carry, and what else a simulator shows (`badenvs`, "data that is hard to carry")."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import badenvs
import rollout
from misbehaving import Acting, Gate, assert_others_succeed, column, errors, measure
from rollout import PolicySpec


def test_every_kind_of_space_arrives_as_it_was_made() -> None:
    policy = Acting()
    report = measure("ZooSpaces", policy, episodes=1)
    assert (errors(report), column(report, "steps")) == ({}, [4])
    zoo = badenvs.ZooSpaces()
    for step in range(4):
        zoo.t = step
        received = {key.removeprefix("observation."): value for key, value in policy.seen[0, step].items()}
        assert received.pop("task") == ""
        assert badenvs.ZooSpaces.digest(received) == badenvs.ZooSpaces.digest(zoo._obs())
        assert type(received["tuple"]) is tuple
        assert type(received["nested"]["a"]["b.c/d"]) is np.int64


def test_a_key_that_vanishes_is_that_episodes_error_and_names_it() -> None:
    report = measure("ShiftingObs", Acting())
    assert_others_succeed(report)
    assert set(errors(report).values()) == {
        "ValueError: the observation has no 'wrist', which its space declares"
    }


def test_a_shape_that_changes_within_an_episode_is_its_error_and_names_both() -> None:
    report = measure("ShiftingObs", Acting(), options={"mode": "shape"})
    assert_others_succeed(report)
    told = "ValueError: the observation's 'wrist' has shape (8, 8, 3) where its space declares (16, 16, 3)"
    assert set(errors(report).values()) == {told}


def test_what_a_policy_does_not_read_is_not_held_against_an_episode() -> None:
    for mode in ("key", "shape"):
        policy = Acting(observation_keys=("observation.state",))
        assert measure("ShiftingObs", policy, options={"mode": mode}).success_rate == 1.0


def test_a_wider_float_becomes_what_its_space_declares() -> None:
    policy = Acting()
    report = measure("ShiftingObs", policy, options={"mode": "dtype"})
    assert (errors(report), report.success_rate) == ({}, 1.0)
    assert {seen["observation.state"].dtype for seen in policy.seen.values()} == {np.dtype(np.float32)}
    assert policy.seen[1, 4]["observation.state"].tolist() == [4, 1]


@pytest.mark.parametrize("n_obs_steps", [1, 2])
def test_every_episode_may_have_a_size_of_its_own(n_obs_steps: int) -> None:
    policy = Acting(n_obs_steps=n_obs_steps, together=3)
    report = measure("ShiftingObs", policy, options={"mode": "by_episode"}, workers=3)
    assert (errors(report), report.success_rate) == ({}, 1.0)
    assert max(policy.sizes) > 1
    for (episode, _), seen in policy.seen.items():
        size = (episode % 3 + 1) * 8
        assert seen["observation.images.wrist"].shape[-3:] == (size, size, 3)
        assert (seen["observation.images.wrist"] == episode).all()
    assert {text.partition(" where")[0] for text in report.summary.warnings} == {
        f"the observation's 'wrist' has shape ({size}, {size}, 3)" for size in (8, 24)
    }


class Brightness(nn.Module):
    """Acts by the mean of the picture, whatever its size; succeeds only where each row is its own."""

    def __init__(self) -> None:
        super().__init__()
        self.shapes: set[tuple[int, ...]] = set()
        self.gate = Gate(together=6)

    def open_session(self, episode: Any, task: Any) -> None:
        self.gate.begin()

    def forward(self, batch: Mapping[str, Any]) -> torch.Tensor:
        self.gate.wait()
        picture = batch["observation.images.wrist"]
        self.shapes.add(tuple(picture.shape))
        mine = picture.flatten(1).mean(1) * 255
        assert torch.allclose(mine, batch["observation.state"][:, 1], atol=1e-3)
        return torch.stack([mine, mine], 1) / 10


def test_a_module_gets_batches_of_one_size_each() -> None:
    module = Brightness()
    report = measure(
        "ShiftingObs",
        module,
        options={"mode": "by_episode"},
        episodes=6,
        workers=6,
        deterministic=False,
    )
    assert (errors(report), report.success_rate) == ({}, 1.0)
    assert {shape[-1] for shape in module.shapes} == {8, 16, 24}
    assert max(shape[0] for shape in module.shapes) > 1


@pytest.mark.parametrize("how", ["list", "whole numbers", "other byte order"])
def test_what_can_be_the_declared_array_becomes_it(how: str) -> None:
    policy = Acting()
    report = measure("sib/Observing", policy, options={"how": how}, episodes=2)
    assert (errors(report), report.success_rate) == ({}, 1.0)
    seen = policy.seen[1, 2]["observation.state"]
    assert (seen.dtype.str, seen.tolist()) == ("<f4", [1.0, 2.0])


@pytest.mark.parametrize(
    ("how", "told"),
    [
        ("text", "has dtype <U7 where its space declares float32"),
        ("none", "has dtype object where its space declares float32"),
        ("one number", "has shape () where its space declares (2,)"),
        ("longer", "has shape (3,) where its space declares (2,)"),
        ("ragged", "is no array but of type list"),
        ("complex", "has dtype complex128 where its space declares float32"),
        ("objects", "has dtype object where its space declares float32"),
        ("beyond float32", "has the value -1e+300, which no float32 can hold"),
    ],
)
def test_what_cannot_is_an_error_that_names_both(how: str, told: str) -> None:
    report = measure("sib/Observing", Acting(), options={"how": how})
    assert_others_succeed(report)
    assert set(errors(report).values()) == {f"ValueError: the observation {told}"}


@pytest.mark.parametrize(
    ("how", "told"),
    [
        ("missing", " has no 'arm.pose', which its space declares"),
        ("no dict", " has no 'arm.pose', which its space declares"),
        ("longer", "'s 'arm.pose' has shape (3,) where its space declares (2,)"),
        ("text", "'s 'arm.pose' has dtype <U7 where its space declares float32"),
        ("fraction", "'s 'arm.grip' has dtype float64 where its space declares int64"),
        ("two numbers", "'s 'arm.grip' has shape (2,) where its space declares one number"),
        ("beyond float32", "'s 'pair.0' has the value 1e+300, which no float32 can hold"),
        ("short", "'s 'pair' has 1 parts where its space declares 2"),
        ("no tuple", "'s 'pair' is of type dict where its space declares a tuple of 2"),
    ],
)
def test_what_is_nested_is_held_to_its_space_too(how: str, told: str) -> None:
    report = measure("sib/Nested", Acting(), options={"how": how})
    assert_others_succeed(report)
    assert set(errors(report).values()) == {f"ValueError: the observation{told}"}


@pytest.mark.parametrize("how", ["undeclared", "proxy", "wider", "list"])
def test_what_is_nested_becomes_what_its_space_declares(how: str) -> None:
    policy = Acting()
    report = measure("sib/Nested", policy, options={"how": how}, episodes=2)
    assert (errors(report), report.success_rate) == ({}, 1.0)
    for seen in policy.seen.values():
        arm, pair = seen["observation.arm"], seen["observation.pair"]
        assert (type(arm), type(pair), list(arm)) == (dict, tuple, ["pose", "grip"])
        assert (arm["pose"].dtype, arm["pose"].tolist(), arm["grip"]) == (np.float32, [0, 0], 1)
        assert (pair[0].dtype, pair[0].tolist(), pair[1]) == (np.float32, [0], 2)
        assert set(seen) == {"observation.arm", "observation.pair", "task"}


@pytest.mark.parametrize(("setting", "told"), [(None, "1,1,1"), ("3", "3,1,1")])
def test_simulators_get_one_thread_unless_the_user_says_otherwise(
    setting: str | None, told: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
        monkeypatch.delenv(name, raising=False)
    if setting is not None:
        monkeypatch.setenv("OMP_NUM_THREADS", setting)
    policy = Acting()
    report = measure("sib/ToldThreads", policy, episodes=1)
    assert errors(report) == {}
    assert policy.seen[0, 0]["observation.limits"] == told


def test_the_old_api_is_an_error_that_says_so() -> None:
    told = errors(measure("OldApi", episodes=2))
    assert sorted(told) == [0, 1]
    assert all("this environment has the old Gym API" in text and "wrap it" in text for text in told.values())


def test_a_picture_that_cannot_be_filmed_costs_the_video_and_not_the_episode(tmp_path: Path) -> None:
    pytest.importorskip("av")
    report = measure("RenderNone", out=tmp_path, video="all")
    assert (errors(report), column(report, "steps")) == ({}, [3] * 6)
    assert [episode.video is not None for episode in report.episodes] == [
        False,
        True,
        True,
        True,
        False,
        True,
    ]
    assert all((tmp_path / episode.video).exists() for episode in report.episodes if episode.video)
    [warning] = report.summary.warnings
    assert warning.startswith("an episode has no video: ValueError: render() returned no frame to film")
    assert not list(tmp_path.rglob("*.partial.mp4"))


def test_the_last_picture_is_of_the_end_and_not_of_the_next_reset(tmp_path: Path) -> None:
    av = pytest.importorskip("av")
    report = measure("sib/Autoresets", out=tmp_path, video="all", episodes=1)
    assert (errors(report), column(report, "success"), column(report, "steps")) == ({}, [True], [3])
    with av.open(str(tmp_path / str(report.episodes[0].video))) as container:
        means = [frame.to_ndarray(format="rgb24").mean() for frame in container.decode(video=0)]
    assert means == pytest.approx([0, 20, 40, 40], abs=4)  # the reset's are 200


class Meddling:
    """Writes into everything that it gets, and compares what it kept of earlier steps with what it was then."""

    def __init__(self, n_obs_steps: int) -> None:
        self.spec = PolicySpec(n_obs_steps=n_obs_steps)
        self.kept: list[tuple[np.ndarray, np.ndarray]] = []

    def infer(self, requests: Any) -> list[np.ndarray]:
        for request in requests:
            self.check(request.observation, request.step)
        return [np.zeros((1, 2), np.float32) for _ in requests]

    def check(self, seen: dict[str, Any], step: int) -> None:
        for given, copy in self.kept:
            np.testing.assert_array_equal(given, copy)
        steps = [max(0, step - age) for age in reversed(range(self.spec.n_obs_steps))]
        stacked = self.spec.n_obs_steps > 1
        picture, state = seen["observation.images.picture"], seen["observation.state"]
        pair = seen["observation.pair"]
        pairs = pair if stacked else [pair]
        assert picture.shape == ((len(steps),) if stacked else ()) + (48, 64, 3)
        assert state.tolist() == [[t, t + 0.5] for t in steps] if stacked else [step, step + 0.5]
        assert [(part[0].tolist(), part[1]) for part in pairs] == [([t, t + 0.5], t) for t in steps]
        for index, t in enumerate(steps):
            frame = picture[index] if stacked else picture
            assert (frame[0, 0, 0], frame[-1, -1, 0]) == (10 * t, 10 * t + 1)  # flipped both ways
        for array in (picture, state, *(part[0] for part in pairs)):
            assert array.flags.c_contiguous
            assert array.flags.writeable
            assert min(array.strides) > 0
            array[...] = 77
            self.kept.append((array, array.copy()))
        if isinstance(pair, list):
            pair.clear()


@pytest.mark.parametrize("workers", [0, 1])
@pytest.mark.parametrize("n_obs_steps", [1, 3])
def test_arrays_that_a_policy_gets_are_its_own(workers: int, n_obs_steps: int) -> None:
    policy = Meddling(n_obs_steps)
    report = measure("sib/Aliasing", policy, episodes=2, workers=workers)
    assert (errors(report), column(report, "steps")) == ({}, [10, 10])
    assert len(policy.kept) >= 20 * 3


def test_a_chunk_that_sees_several_steps_sees_each_as_it_was() -> None:
    policy = Acting(
        lambda request: np.zeros((4, 2), np.float32), n_obs_steps=3, chunk_size=4, n_action_steps=4
    )
    measure("sib/Aliasing", policy, episodes=1)
    assert [policy.seen[0, step]["observation.state"][:, 0].tolist() for step in (0, 4, 8)] == [
        [0, 0, 0],
        [2, 3, 4],
        [6, 7, 8],
    ]


@pytest.mark.parametrize("where", ["attribute", "info", "observation"])
def test_an_instruction_that_is_no_unicode_is_told_as_far_as_it_can_be(where: str) -> None:
    policy = Acting()
    report = measure("sib/BadText", policy, options={"where": where}, episodes=2)
    assert (errors(report), report.success_rate) == ({}, 1.0)
    assert {seen["task"] for seen in policy.seen.values()} == {"lift the ? cube"}


def test_a_bare_engine_stays_warm_over_a_run_with_errors() -> None:
    import anyio

    async def twice() -> list[rollout.Report]:
        target = "gym:badenvs:bad/ShiftingObs-v0"
        async with rollout.Engine(target, seed=0, workers=2, horizon=100) as engine:
            return [await engine.evaluate(Acting(), episodes=4) for _ in range(2)]

    first, second = anyio.run(twice)
    assert [e.digest for e in first.episodes] == [e.digest for e in second.episodes]
    assert errors(first) == errors(second) != {}
