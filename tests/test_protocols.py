"""Whose rules an evaluation follows: the values of each protocol, what overrides them, what the results say."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import rollout
from rollout.config import EvalConfig
from rollout.envs.gymnasium import GymnasiumSimulator
from rollout.envs.libero import LiberoSimulator
from rollout.envs.metaworld import MetaWorldSimulator
from rollout.errors import UsageError
from rollout.protocols import protocol_used, simulator_options
from rollout.types import ProtocolUsed

ADAPTERS: dict[str, Any] = {"libero": LiberoSimulator, "metaworld": MetaWorldSimulator}


def config(**settings: Any) -> EvalConfig:
    return EvalConfig.create(targets=("libero:spatial",), **settings)


def used(family: str = "libero", **settings: Any) -> ProtocolUsed:
    chosen = config(**settings)
    return protocol_used(chosen, simulator_options(chosen, {family: ADAPTERS[family]}))


@pytest.mark.parametrize(
    ("protocol", "run", "values"),
    [
        (
            "lerobot",
            {"seed": 1000, "episodes": 10, "n_action_steps": None},
            {"height": "360", "resize": "none", "horizon.spatial": "280", "gripper": "continuous"},
        ),
        (
            "openpi",
            {"seed": 7, "episodes": 50, "n_action_steps": 5},
            {"height": "256", "resize": "224", "horizon.spatial": "220", "gripper": "continuous"},
        ),
        (
            "vla-eval",
            {"seed": 7, "episodes": 50, "n_action_steps": None},
            {"height": "256", "resize": "none", "horizon.spatial": "220", "gripper": "binary"},
        ),
    ],
)
def test_a_protocol_stands_for_the_values_of_its_own_script(
    protocol: str, run: dict[str, Any], values: dict[str, str]
) -> None:
    chosen = config(protocol=protocol)
    assert {name: getattr(chosen, name) for name in run} == run
    record = used(protocol=protocol)
    assert record.name == protocol
    everywhere = {
        "settle_steps": "10",
        "flip": "both",
        "horizon.object": "280",
        "horizon.goal": "300",
        "horizon.10": "520",
        "horizon.90": "400",
    }
    assert record.options["libero"].items() >= {**values, **everywhere}.items()


def test_what_is_given_wins_over_the_protocol() -> None:
    chosen = config(protocol="openpi", seed=3, episodes=2, options={"resize": "128"})
    assert (chosen.seed, chosen.episodes, chosen.n_action_steps) == (3, 2, 5)
    record = used(protocol="openpi", options={"resize": "128"})
    assert record.options["libero"]["resize"] == "128"
    assert record.options["libero"]["height"] == "256"


def test_the_fingerprint_is_that_of_the_values_and_of_nothing_else() -> None:
    plain = used()
    assert used(episodes=3, workers=2).fingerprint == plain.fingerprint
    changed = [
        used(seed=1),
        used(horizon=9),
        used(n_action_steps=4),
        used(options={"settle_steps": "11"}),
        used(protocol="openpi"),
        used(protocol="vla-eval"),
    ]
    assert len({plain.fingerprint, *(record.fingerprint for record in changed)}) == 1 + len(changed)


def test_a_protocol_that_a_family_does_not_have_is_a_usage_error_that_says_which_it_has() -> None:
    with pytest.raises(UsageError, match=r"libero has no protocol 'opnpi'; did you mean 'openpi'"):
        used(protocol="opnpi")
    with pytest.raises(UsageError, match=r"metaworld has no protocol 'openpi' \(it has lerobot\)"):
        used("metaworld", protocol="openpi")


def test_an_option_goes_to_the_families_that_have_it_and_to_nobody_else() -> None:
    chosen = config(options={"height": "64", "settle_steps": "3", "camera.agentview": "front"})
    options = simulator_options(chosen, ADAPTERS)
    assert options["libero"].items() >= chosen.options.items()
    assert options["metaworld"]["height"] == "64"
    assert "settle_steps" not in options["metaworld"]
    with pytest.raises(UsageError, match="--set hight: no such option; did you mean 'height'"):
        simulator_options(config(options={"hight": "64"}), ADAPTERS)


def test_an_environment_takes_any_option_under_the_default_protocol() -> None:
    chosen = config(options={"max_episode_steps": "7"})
    assert simulator_options(chosen, {"gym": GymnasiumSimulator}) == {"gym": {"max_episode_steps": "7"}}


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"camera.agentvue": "a"}, "camera.agentvue=a: no such camera; did you mean 'agentview'"),
        ({"camera.agentview": "image2"}, "two cameras cannot have one name"),
        ({"camera.agentview": ""}, "give the name"),
        ({"empty_cameras": "-1"}, "empty_cameras=-1: must be a whole number"),
        ({"resize": "8"}, "resize=8: must be a whole number from 16"),
        ({"gripper": "binry"}, "gripper=binry.*did you mean 'binary'"),
        ({"horizon.goal": "0"}, "horizon.goal=0: must be"),
        ({"reset": "soft"}, "reset=soft: must be one of fast, hard"),
    ],
)
def test_a_bad_value_is_one_line_that_says_what_is_valid(options: dict[str, str], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        LiberoSimulator.describe("spatial", options)


def test_every_result_says_which_protocol_it_followed(tmp_path: Path) -> None:
    out = tmp_path / "run"
    report = rollout.run("zero", "gym:CartPole-v1", episodes=1, workers=1, horizon=5, seed=4, out=out)
    assert report.protocol is not None
    assert (report.protocol.name, report.protocol.seed, report.protocol.horizon) == ("lerobot", 4, 5)
    header = json.loads((out / "episodes.jsonl").read_text().splitlines()[0])
    summary = json.loads((out / "summary.json").read_text())
    assert header["protocol"] == summary["protocol"]
    assert summary["protocol"]["fingerprint"] == report.protocol.fingerprint


@pytest.mark.metaworld
def test_a_resumed_run_cannot_change_a_protocols_value(tmp_path: Path) -> None:
    settings: dict[str, Any] = {"episodes": 2, "workers": 0, "out": tmp_path / "run"}
    rollout.run("zero", "metaworld:reach-v3", horizon=3, **settings)
    with pytest.raises(UsageError, match='metaworld height "480" -> "64"'):
        rollout.run(
            "zero", "metaworld:reach-v3", horizon=3, resume=True, options={"height": "64"}, **settings
        )
