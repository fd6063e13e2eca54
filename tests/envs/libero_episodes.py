"""Runs in an interpreter of its own: LIBERO episodes, LeRobot's way and ours, as JSON."""

from __future__ import annotations

import hashlib
import json
import os
import sys
from collections.abc import Callable
from typing import Any

import numpy as np

from rollout.envs import libero_files
from rollout.envs.libero import LiberoSimulator
from rollout.types import EpisodeSpec, ObservationRequest

SUITE, TASK_ID = "spatial", 4  # an open drawer: a scene whose fixtures move with the number of resets
SEED, INIT_STATE = 1003, 3
N_STEPS = 9
SIZE = 64
ALL, NOTHING = ObservationRequest(), ObservationRequest(keys=())


def actions() -> np.ndarray:
    drawn = np.random.default_rng(5).uniform(-1, 1, (N_STEPS, 7)).astype(np.float32)
    drawn[:, 2] = -np.abs(drawn[:, 2])
    return drawn


def sha1(array: np.ndarray) -> str:
    return hashlib.sha1(np.ascontiguousarray(array).tobytes()).hexdigest()


def spec(seed: int, init_state: int | None) -> EpisodeSpec:
    return EpisodeSpec(
        suite=f"libero:{SUITE}",
        task="",
        task_id=TASK_ID,
        episode=0,
        seed=seed,
        init_state=init_state,
        horizon=99,
    )


def plain() -> list[dict[str, Any]]:
    """As LeRobot's LiberoEnv and its processor do it, written on LIBERO itself: every step rendered."""
    libero_files.prepare()
    from libero.libero.benchmark import get_benchmark
    from libero.libero.envs import OffScreenRenderEnv

    suite = get_benchmark(f"libero_{SUITE}")()
    env = OffScreenRenderEnv(
        bddl_file_name=suite.get_task_bddl_file_path(TASK_ID), camera_heights=SIZE, camera_widths=SIZE
    )
    env.reset()
    env.seed(SEED)
    env.reset()
    raw = env.set_init_state(suite.get_task_init_states(TASK_ID)[INIT_STATE])
    for _ in range(10):
        raw, _, _, _ = env.step([0] * 6 + [-1])
    seen = [_plain_moment(raw, 0.0, env.check_success(), env)]
    for action in actions():
        raw, reward, _, _ = env.step(action)
        seen.append(_plain_moment(raw, reward, env.check_success(), env))
    env.close()
    return seen


def _plain_moment(raw: Any, reward: float, success: bool, env: Any) -> dict[str, Any]:
    rotation = _lerobot_axis_angle(raw["robot0_eef_quat"])
    return {
        "physics": sha1(env.sim.get_state().flatten()),
        "reward": float(reward),
        "success": bool(success),
        "image": sha1(np.flip(raw["agentview_image"], (0, 1))),
        "image2": sha1(np.flip(raw["robot0_eye_in_hand_image"], (0, 1))),
        "state": [*raw["robot0_eef_pos"], *rotation, *raw["robot0_gripper_qpos"]],
    }


def _lerobot_axis_angle(quaternion: np.ndarray) -> list[float]:
    import torch

    x = torch.from_numpy(quaternion).float()
    w = x[3].clamp(-1.0, 1.0)
    turned: list[float] = (x[:3] / torch.sqrt(1.0 - w * w) * (2.0 * torch.acos(w))).tolist()
    return turned


def ours() -> dict[str, Any]:
    """The same episode after another one, looked at now and then; then filmed; then brought to its goal."""
    options = {"height": str(SIZE), "width": str(SIZE), "earlier_resets": "1"}
    simulator = LiberoSimulator(LiberoSimulator.describe(SUITE, options), TASK_ID, options)
    simulator.build()
    rendered = _count_renderings()
    simulator.reset(spec(7, 1), NOTHING)
    for action in actions():
        simulator.step(-action, True)
    blind = rendered()
    looked = _episode(simulator, ALL, lambda index: index % 4 == 0, film=False)
    n_looked = rendered() - blind
    filmed = _episode(simulator, NOTHING, lambda index: True, film=True)
    n_filmed = rendered() - blind - n_looked
    solved = _solve(simulator)
    simulator.close()
    simulator.close()
    return {
        "looked": looked,
        "filmed": filmed,
        "renderings": [blind, n_looked, n_filmed],
        "solved": solved,
        "instruction": simulator.info.instruction,
    }


def _count_renderings() -> Callable[[], int]:
    from robosuite.utils.binding_utils import MjRenderContext

    n_calls, render = [0], MjRenderContext.render

    def counted(*args: Any, **kwargs: Any) -> Any:
        n_calls[0] += 1
        return render(*args, **kwargs)

    MjRenderContext.render = counted
    return lambda: n_calls[0]


def _episode(
    simulator: LiberoSimulator, observe: ObservationRequest, looks: Callable[[int], bool], *, film: bool
) -> list[dict[str, Any]]:
    seen = [_moment(simulator, simulator.reset(spec(SEED, INIT_STATE), observe), film=film)]
    for index, action in enumerate(actions(), 1):
        step = simulator.step(action, looks(index))
        moment = _moment(simulator, step.observation, film=film)
        seen.append(moment | {"reward": step.reward, "success": step.success, "terminated": step.terminated})
    return seen


def _moment(simulator: LiberoSimulator, observation: Any, *, film: bool) -> dict[str, Any]:
    moment: dict[str, Any] = {"physics": sha1(simulator._env.sim.get_state().flatten())}
    for name in ("image", "image2"):
        if observation and f"observation.images.{name}" in observation:
            moment[name] = sha1(observation[f"observation.images.{name}"])
    if observation and "observation.state" in observation:
        moment["state"] = observation["observation.state"].tolist()
    return moment | ({"film": sha1(simulator.render())} if film else {})


def _solve(simulator: LiberoSimulator) -> list[list[Any]]:
    """Put the bowl onto the plate; `[reward, success, terminated, truncated]` of the steps after it."""
    simulator.reset(spec(SEED, INIT_STATE), NOTHING)
    scene = simulator._env.env
    [[_, bowl, plate]] = scene.parsed_problem["goal_state"]
    where = scene.sim.data.body_xpos[scene.obj_body_id[plate]] + np.array([0, 0, 0.03])
    scene.sim.data.set_joint_qpos(scene.objects_dict[bowl].joints[-1], np.array([*where, 1, 0, 0, 0]))
    steps: list[list[Any]] = []
    while len(steps) < 20 and not (steps and steps[-1][2]):
        step = simulator.step(np.array([0, 0, 0, 0, 0, 0, -1], np.float32), False)
        steps.append([step.reward, step.success, step.terminated, step.truncated])
    return steps


def options() -> dict[str, Any]:
    """Every option away from its default."""
    given = {"height": "48", "width": "64", "settle_steps": "0", "init_states": "false"}
    given["control_mode"] = "absolute"
    suite = LiberoSimulator.describe(SUITE, given)
    simulator = LiberoSimulator(suite, TASK_ID, given)
    simulator.build()
    starts = []
    for seed in (1, 2, 1):
        seen = simulator.reset(spec(seed, None), ALL)
        starts.append(sha1(simulator._env.sim.get_state().flatten()))
    picture = seen["observation.images.image2"]
    there = np.array([-0.2, 0, 1.2, 3.14, 0, 0, -1], np.float32)
    for _ in range(50):
        simulator.step(there, False)
    simulator._env.env.timestep = 999  # robosuite's own limit is 1000
    ends = [(step.terminated, step.truncated) for step in (simulator.step(there, False) for _ in range(3))]
    last = simulator.step(there, True).observation
    simulator.close()
    return {
        "starts": starts,
        "shape": picture.shape,
        "colours": len(np.unique(picture)),
        "ends": ends,
        "position": last["observation.state"][:3].tolist() if last else None,
        "n_init_states": suite.tasks[TASK_ID].n_init_states,
    }


def protocols() -> dict[str, Any]:
    """What `openpi` and `vla-eval` make of one and the same step, on the way the picture before and after."""
    from PIL import Image

    told: dict[str, Any] = {}
    for name, changed in (("openpi", {"empty_cameras": "1", "camera.agentview": "front"}), ("vla-eval", {})):
        given = {**LiberoSimulator.protocols[name], **changed}
        simulator = LiberoSimulator(LiberoSimulator.describe(SUITE, given), TASK_ID, given)
        simulator.build()
        simulator.reset(spec(SEED, INIT_STATE), ALL)
        gripper = simulator._env.robots[0].gripper
        before = gripper.current_action.copy()
        seen = simulator.step(np.zeros(7, np.float32), True).observation
        assert seen is not None
        raw = np.ascontiguousarray(simulator._pictures.made("agentview")[::-1, ::-1])
        told[name] = {
            "shapes": {key: value.shape for key, value in seen.items() if key != "task"},
            "raw": raw.shape,
            "resized": sha1(np.asarray(Image.fromarray(raw).resize((224, 224), Image.Resampling.BILINEAR))),
            "unchanged": sha1(raw),
            "picture": sha1(seen.get("observation.images.front", seen.get("observation.images.image"))),
            "black": int(seen["observation.images.empty_camera_0"].max()) if changed else None,
            "horizon": simulator.info.horizon,
            "gripper_moved": bool((gripper.current_action != before).any()),
            "state": seen["observation.state"].tolist(),
            "quaternion": simulator._env.env._get_observations()["robot0_eef_quat"].tolist(),
        }
        simulator.close()
    return told


def describe() -> dict[str, Any]:
    """All five suites, and where LIBERO was told to find its files."""
    suites = {name: LiberoSimulator.describe(name, {}) for name in LiberoSimulator.expand("all")}
    return {
        "config": os.environ["LIBERO_CONFIG_PATH"],
        "versions": sorted(suites["goal"].versions),
        "suites": {
            name: [[task.task_id, task.instruction, task.horizon, task.n_init_states] for task in suite.tasks]
            for name, suite in suites.items()
        },
    }


if __name__ == "__main__":
    modes: dict[str, Callable[[], Any]] = {
        "plain": plain,
        "ours": ours,
        "options": options,
        "protocols": protocols,
        "describe": describe,
    }
    print("\n" + json.dumps(modes[sys.argv[1]](), default=float))
