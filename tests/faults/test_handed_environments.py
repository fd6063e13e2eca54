"""Environments that only the user's script knows: registered late, in `__main__`, as closures, or given as targets."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import gymnasium as gym
import pytest

import badenvs
import rollout
from misbehaving import measure
from rollout.envs.gymnasium_handover import hand_over
from rollout.errors import UsageError

SETTINGS: dict[str, Any] = {"episodes": 2, "seed": 0, "horizon": 20}

SCRIPT = """
import json
import badenvs
import gymnasium as gym
import rollout

class Mine(badenvs.LateRegistered):
    def __init__(self, size=(), **kw):
        super().__init__(**kw)
        assert size == (3, 4), size

def run(target):
    report = rollout.run("zero", target, episodes=2, seed=0, horizon=20, workers=2)
    return [[e.success, e.steps] for e in report.episodes]

if __name__ == "__main__":
    badenvs.register_late()
    gym.register("mine/Text-v0", "__main__:Mine", kwargs={"size": (3, 4)})
    gym.register("mine/Class-v3", Mine, kwargs={"size": (3, 4)})
    gym.register("mine/Closure-v0", badenvs.make_closure_env(4))
    gym.register("CartPole-v1", badenvs.LateRegistered)
    print(json.dumps({target: run(f"gym:{target}") for target in (
        "bad/LateRegistered-v0", "bad/LateRegistered", "badenvs:bad/LateRegistered-v0",
        "mine/Text-v0", "mine/Class", "mine/Closure-v0", "CartPole-v1",
    )} | {"itself": run(lambda: Mine((3, 4)))}))
"""


def test_what_a_script_registers_is_known_to_its_workers(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    done = subprocess.run(
        [sys.executable, str(script)],
        env=os.environ | {"PYTHONPATH": str(Path(__file__).parents[1])},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout.splitlines()[-1])
    assert found.pop("mine/Closure-v0") == [[True, 4]] * 2
    assert len(found) == 7
    assert all(episodes == [[True, 2]] * 2 for episodes in found.values()), found


@pytest.mark.parametrize("workers", [0, 2])
def test_a_factory_is_a_target_whatever_it_closes_over(workers: int) -> None:
    report = rollout.run("zero", badenvs.make_closure_env(5), workers=workers, **SETTINGS)
    assert [episode.steps for episode in report.episodes] == [5, 5]
    assert report.success_rate == 1.0
    assert {episode.suite for episode in report.episodes} == {"gym:make_closure_env.locals.lambda"}


def test_a_class_is_a_target_and_may_stand_beside_a_name() -> None:
    report = rollout.run(
        "zero", [badenvs.StepAfterDone, "gym:badenvs:bad/DoneTypes-v0"], workers=2, **SETTINGS
    )
    assert sorted(report.suites) == ["gym:StepAfterDone", "gym:badenvs:bad/DoneTypes-v0"]
    assert report.success_rate == 1.0


def test_two_factories_of_one_name_are_refused() -> None:
    with pytest.raises(UsageError, match=r"two of the targets are called make_closure_env\.locals\.lambda"):
        rollout.run("zero", [badenvs.make_closure_env(2), badenvs.make_closure_env(3)], **SETTINGS)


def test_an_environment_itself_is_no_target() -> None:
    with pytest.raises(
        UsageError, match="a target is a name, or a class or function that makes an environment"
    ):
        rollout.run("zero", badenvs.StepAfterDone(), **SETTINGS)  # type: ignore[arg-type]


def test_a_factory_that_cannot_be_sent_is_refused_in_one_line() -> None:
    lock = threading.Lock()
    with pytest.raises(
        UsageError, match=r"cannot be handed to the workers \(.*lock.*register it in a module"
    ) as told:
        rollout.run("zero", lambda: lock, **SETTINGS)
    assert "\n" not in str(told.value)


def test_an_id_that_nobody_registered_is_refused_with_the_way_out() -> None:
    with pytest.raises(
        UsageError, match=r"no environment 'bad/LateRegistered-v0' is registered.*rollout.run"
    ):
        measure("LateRegistered")


@pytest.fixture
def registered() -> Iterator[str]:
    gym.register("bad/Told-v0", "badenvs:LateRegistered", kwargs={"a": 1}, max_episode_steps=9)
    yield "bad/Told-v0"
    del gym.registry["bad/Told-v0"]


def test_a_registration_that_json_can_tell_is_sent_as_json(registered: str) -> None:
    [(name, sent)] = hand_over([("gym", registered)], {}).items()
    assert name == registered
    assert json.loads(sent) == json.loads(gym.spec(registered).to_json())


def test_nothing_is_handed_over_where_nothing_is_registered() -> None:
    assert hand_over([("gym", "mine/Nowhere-v0"), ("gym", "nowhere:mine/Nowhere-v0")], {}) == {}


def test_options_of_ours_are_the_environments_where_it_names_them() -> None:
    report = measure("sib/Owns", options={"settle_steps": "7", "init_states": "some"})
    assert report.success_rate == 1.0
    assert {episode.init_state for episode in report.episodes} == {None}


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"settle_steps": "-1"}, "--set settle_steps=-1: must be a whole number from 0"),
        ({"settle_action": "[0,0]"}, r"settle_action=\[0,0\]: how often\?"),
        (
            {"settle_steps": "2", "settle_action": "[0]"},
            r"settle_action=\[0\]: no action of this environment, Box",
        ),
        ({"settle_steps": "2", "settle_action": "up"}, "settle_action=up: no action of this environment"),
        ({"init_states": "0"}, "--set init_states=0: must be a whole number from 1"),
        ({"init_states": "3"}, r"--set init_states=3: the environment has no method set_init_state\(i\)"),
    ],
)
def test_options_that_cannot_be_are_refused_in_one_line(options: dict[str, str], told: str) -> None:
    with pytest.raises(UsageError, match=told):
        measure("SettleSteps", options=options)


def test_a_registered_time_limit_does_not_count_settle_steps(registered: str) -> None:
    report = rollout.run(
        "zero",
        f"gym:{registered}",
        episodes=1,
        workers=1,
        options={"settle_steps": "1", "max_episode_steps": "1"},
    )
    assert [episode.steps for episode in report.episodes] == [1]


def test_an_episode_that_ends_while_it_settles_is_an_error_that_says_so() -> None:
    report = measure("StepAfterDone", options={"settle_steps": "8"}, episodes=1)
    [error] = [episode.error for episode in report.episodes]
    assert error is not None
    assert error.message == "the episode ended within its 8 settle steps: fewer --set settle_steps"
