"""The scripted LIBERO expert: what it decides on states made by hand, and what it reaches in the simulator."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from msgspec import structs

from rollout.envs.libero import LiberoSimulator
from rollout.errors import UsageError
from rollout.policies.base import Request
from rollout.policies.libero_expert import LiberoExpert
from rollout.policies.libero_grasps import Grasp, grasps
from rollout.policies.libero_motion import downward, tilted, turned
from rollout.policies.libero_plan import holds
from rollout.policies.libero_scene import Layout, Scene
from rollout.types import EpisodeSpec, SuiteInfo, Task, TaskInfo

SCRIPT = Path(__file__).with_name("libero_expert_episodes.py")
KEY = "observation.environment_state"
GOAL = (("on", "butter_1", "plate_1"),)
AXES, QUATERNION = "xyz", "xyzw"

State = dict[str, float]


def vector(name: str, values: tuple[float, ...], axes: str = AXES) -> State:
    return {f"{name}.{axis}": value for axis, value in zip(axes, values, strict=True)}


def thing(
    name: str, at: tuple[float, float, float], half: tuple[float, float, float], yaw: float = 0.0
) -> State:
    """A box whose origin is its middle."""
    turn = (0.0, 0.0, math.sin(yaw / 2), math.cos(yaw / 2))
    low = (-half[0], -half[1], -half[2])
    pose = vector(f"{name}.pos", at) | vector(f"{name}.quat", turn, QUATERNION)
    return pose | vector(f"{name}.low", low) | vector(f"{name}.high", half)


def state(*things: State) -> State:
    """The arm as an episode starts, on a table at 0.9 m, and what else there is."""
    found = vector("robot0_base_pos", (-0.66, 0.0, 0.912)) | vector("robot0_eef_pos", (-0.2, 0.0, 1.17))
    found |= vector("robot0_eef_quat", (math.sqrt(0.5), math.sqrt(0.5), 0.0, 0.0), QUATERNION)
    found |= {"robot0_gripper_qpos.0": 0.039, "robot0_gripper_qpos.1": -0.039}
    for more in things:
        found |= more
    return found


BUTTER = thing("butter_1", (-0.1, 0.1, 0.909), (0.04, 0.02, 0.009))
PLATE = thing("plate_1", (0.05, -0.1, 0.905), (0.07, 0.07, 0.008))
SIMPLE = state(BUTTER, PLATE)


def scene(values: State) -> Scene:
    return Layout(tuple(values)).read(np.array(list(values.values()), np.float32))


def info(values: State, goal: tuple[tuple[str, ...], ...] = GOAL, **options: str) -> TaskInfo:
    task = Task(task="a_task", task_id=3, instruction="a task", horizon=280, n_init_states=50)
    simulator = LiberoSimulator(SuiteInfo(suite="libero:goal", tasks=(task,)), 3, options)
    return structs.replace(simulator.info, environment_state=tuple(values), goal=goal)


EPISODE = EpisodeSpec(suite="libero:goal", task="a_task", task_id=3, episode=0, seed=1000, horizon=280)


def acted(states: list[State]) -> list[np.ndarray]:
    """The actions of one episode that goes through these states."""
    expert, task = LiberoExpert(), info(states[0])
    session = expert.open_session(EPISODE, task)
    actions = []
    for step, values in enumerate(states):
        observation = {KEY: np.array(list(values.values()), np.float32)}
        [chunk] = expert.infer([Request(EPISODE, task, step, step, session, observation)])
        assert chunk.shape == (1, 7)
        assert chunk.dtype == np.float32
        assert np.abs(chunk).max() <= 1
        actions.append(chunk[0])
    return actions


def test_it_first_goes_to_the_object_with_open_fingers() -> None:
    [action] = acted([SIMPLE])
    assert action[0] > 0
    assert action[1] > 0
    assert action[6] == -1


def test_above_the_object_it_goes_straight_down_and_then_closes_the_fingers() -> None:
    above = SIMPLE | vector("robot0_eef_pos", (-0.1, 0.1, 0.99))
    at_it = SIMPLE | vector("robot0_eef_pos", (-0.1, 0.1, 0.909))
    _, down, closing = acted([above, above, at_it])
    assert down[2] < -0.3
    assert np.abs(down[:2]).max() < 0.05
    assert closing[6] == 1


def test_the_same_states_lead_to_the_same_actions() -> None:
    path = [SIMPLE | vector("robot0_eef_pos", (-0.2 + 0.01 * n, 0.01 * n, 1.17)) for n in range(12)]
    first, second = acted(path), acted(path)
    assert len(first) == 12
    np.testing.assert_array_equal(first, second)


def test_episodes_in_one_batch_do_not_touch_each_other() -> None:
    other = state(thing("butter_1", (-0.1, -0.3, 0.909), (0.04, 0.02, 0.009)), PLATE)
    expert = LiberoExpert()
    requests = [
        Request(
            EPISODE,
            info(values),
            0,
            0,
            expert.open_session(EPISODE, info(values)),
            {KEY: np.array(list(values.values()), np.float32)},
        )
        for values in (SIMPLE, other)
    ]
    together = [chunk[0] for chunk in expert.infer(requests)]
    np.testing.assert_array_equal(together, [*acted([SIMPLE]), *acted([other])])


@pytest.mark.parametrize("yaw", [0.0, 0.6, -0.6])
def test_a_box_is_taken_across_its_narrow_side(yaw: float) -> None:
    box = thing("butter_1", (-0.1, 0.1, 0.909), (0.04, 0.02, 0.009), yaw)
    best = grasps(scene(state(box)), "butter_1")[0]
    assert math.sin(best.angle - (math.pi / 2 + yaw)) == pytest.approx(0, abs=1e-5)
    np.testing.assert_allclose(best.position, (-0.1, 0.1, 0.909), atol=2e-3)


def test_what_is_wider_than_the_hand_on_both_sides_cannot_be_taken() -> None:
    assert grasps(scene(state(thing("crate_1", (0, 0, 0.95), (0.05, 0.05, 0.05)))), "crate_1") == []


def bowl(*others: State) -> Grasp:
    found = thing("akita_black_bowl_1", (-0.1, 0.0, 0.925), (0.053, 0.053, 0.025))
    return grasps(scene(state(found, *others)), "akita_black_bowl_1")[0]


def test_a_bowl_is_taken_by_its_rim_on_a_side_that_is_free() -> None:
    middle, free = np.array([-0.1, 0.0]), bowl().position[:2]
    assert np.linalg.norm(free - middle) == pytest.approx(0.045, abs=2e-3)
    x, y = middle + 2 * (free - middle)
    taken = bowl(thing("milk_1", (x, y, 0.97), (0.03, 0.03, 0.07))).position[:2]
    assert np.linalg.norm(taken - middle) == pytest.approx(0.045, abs=2e-3)
    assert np.linalg.norm(taken - (x, y)) > 0.07 > np.linalg.norm(free - (x, y))


def test_a_bowl_far_away_is_taken_on_the_near_side() -> None:
    far = state(thing("akita_black_bowl_1", (0.15, 0.0, 0.925), (0.053, 0.053, 0.025)))
    assert grasps(scene(far), "akita_black_bowl_1")[0].position[0] < 0.15 - 0.02


def test_a_thing_on_the_plate_is_where_it_should_be() -> None:
    on_it = state(thing("butter_1", (0.06, -0.09, 0.925), (0.04, 0.02, 0.009)), PLATE)
    assert holds(scene(on_it), GOAL[0])
    assert not holds(scene(SIMPLE), GOAL[0])


def test_orientations_are_followed_the_shorter_way_and_half_turns_too() -> None:
    np.testing.assert_allclose(turned(downward(1.5), downward(1.1)), (0, 0, 0.4), atol=1e-9)
    assert np.linalg.norm(turned(downward(0.0), downward(math.pi))) == pytest.approx(math.pi)
    hand = tilted(np.array([0.0, -1.0, 0.0]), np.array([0.0, 0.0, 1.0]))
    assert np.linalg.det(hand) == pytest.approx(1)
    np.testing.assert_allclose(hand[:, 2], (0, -1, 0))


@pytest.mark.parametrize("goal", [(("incontact", "butter_1", "plate_1"),), ()])
def test_a_goal_without_a_skill_is_refused_in_one_line(goal: tuple[tuple[str, ...], ...]) -> None:
    with pytest.raises(UsageError, match=r"no skill for .*libero:goal task 3") as raised:
        LiberoExpert().open_session(EPISODE, info(SIMPLE, goal))
    assert "\n" not in str(raised.value)


def test_absolute_control_is_refused_with_what_to_drop() -> None:
    with pytest.raises(UsageError, match="control_mode=absolute"):
        LiberoExpert().open_session(EPISODE, info(SIMPLE, control_mode="absolute"))


def test_other_simulators_are_refused() -> None:
    with pytest.raises(UsageError, match="metaworld:mt10"):
        LiberoExpert().open_session(EPISODE, structs.replace(info(SIMPLE), suite="metaworld:mt10"))


@pytest.mark.libero
@pytest.mark.gl
@pytest.mark.parametrize(
    ("suite", "task_id", "moved"),
    [
        pytest.param("spatial", 0, "akita_black_bowl_1.pos.z", marks=pytest.mark.soak),
        pytest.param("object", 1, "basket_1_contain_region.size.z", marks=pytest.mark.soak),
        ("goal", 7, "flat_stove_1_button.qpos"),
    ],
)
def test_it_solves_tasks_in_the_simulator(
    in_child: Callable[..., Any], suite: str, task_id: int, moved: str
) -> None:
    told = in_child(SCRIPT, suite, str(task_id), "0", timeout_s=120.0)
    assert told["success"], told["n_steps"]
    assert told["n_steps"] > 20
    assert told["largest"] == 1.0
    assert len(set(told["names"])) == len(told["names"]) == told["n_values"]
    assert told["dtype"] == "float32"
    assert told["finite"]
    assert moved in told["state"]
    assert all(any(name.startswith(predicate[1]) for name in told["names"]) for predicate in told["goal"])
