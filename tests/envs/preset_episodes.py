"""Runs in an interpreter of its own: one episode of a preset, upstream's way or ours, as JSON."""

from __future__ import annotations

import hashlib
import importlib
import json
import sys
from typing import Any

import numpy as np

from rollout.envs.cameras import CameraNames
from rollout.envs.registry import load_simulator, resolve
from rollout.types import EpisodeSpec, ObservationRequest

N_STEPS = {"pusht": 32, "aloha": 8}  # a step of ALOHA upstream takes 0.3 s
SEED = 3
EVERY = 4  # the steps that are looked at
# LeRobot 0.6.1's environment configurations, written out.
LEROBOT = {
    "pusht:push_t": ("gym_pusht/PushT-v0", {"visualization_width": 384, "visualization_height": 384}),
    "aloha:insertion": ("gym_aloha/AlohaInsertion-v0", {"max_episode_steps": 400}),
    "aloha:transfer_cube": ("gym_aloha/AlohaTransferCube-v0", {"max_episode_steps": 400}),
}
CAMERAS = {"pusht": "observation.images.image", "aloha": "observation.images.top"}


def actions(family: str) -> np.ndarray:
    draw = np.random.default_rng(3)
    if family == "pusht":  # criss-cross over the square, 8 steps each way
        corners = np.array([[120, 120], [400, 400], [400, 120], [120, 400]], np.float32)
        return corners.repeat(N_STEPS["pusht"] // 4, axis=0)
    pose = np.array([0, -0.96, 1.16, 0, -0.3, 0, 0.5] * 2)
    return np.asarray(pose + draw.normal(0, 0.2, (N_STEPS["aloha"], 14)).cumsum(0), np.float32)


def sha1(array: np.ndarray) -> str:
    return hashlib.sha1(np.ascontiguousarray(array).tobytes()).hexdigest()


def scene(bare: Any) -> list[float]:
    """Where everything is: PushT's block, or all of ALOHA's joints and objects."""
    if hasattr(bare, "block"):
        return [*bare.block.position, bare.block.angle]
    return list(map(float, bare._env.physics.data.qpos))


def upstream(target: str) -> dict[str, Any]:
    """As LeRobot makes the environment: everything rendered at every step. The second episode of the process."""
    import gymnasium

    env_id, arguments = LEROBOT[target]
    importlib.import_module(env_id.partition("/")[0])
    env = gymnasium.make(
        env_id, obs_type="pixels_agent_pos", render_mode="rgb_array", disable_env_checker=True, **arguments
    )
    env.reset(seed=1)
    env.step(actions(target.partition(":")[0])[0])
    seen, _ = env.reset(seed=SEED)
    found: dict[str, list[Any]] = {"pictures": [], "states": [], "scenes": [], "rewards": [], "successes": []}

    def note(seen: Any) -> None:
        found["scenes"].append(scene(env.unwrapped))
        pixels = seen["pixels"]
        found["pictures"].append(sha1(pixels["top"] if isinstance(pixels, dict) else pixels))
        found["states"].append(sha1(seen["agent_pos"].astype(np.float32)))

    note(seen)
    for action in actions(target.partition(":")[0]):
        seen, reward, terminated, _, info = env.step(action)
        note(seen)
        found["rewards"].append(float(reward))
        found["successes"].append([bool(info["is_success"]), bool(terminated)])
    return {**found, "film": sha1(env.render()), "size": env.render().shape}


def ours(target: str, *, observed: bool = True) -> dict[str, Any]:
    """After another episode, looking at every fourth step, or at none."""
    family, [name] = resolve(target)
    adapter = load_simulator(family)
    suite = adapter.describe(name, {})
    simulator: Any = adapter(suite, 0, {})
    simulator.build()
    keys = (CAMERAS[family], "observation.state")
    request = ObservationRequest(keys=keys if observed else ("observation.state",))

    def reset(seed: int) -> Any:
        spec = EpisodeSpec(suite=target, task=name, task_id=0, episode=0, seed=seed, horizon=400)
        return simulator.reset(spec, request)

    reset(1)
    simulator.step(-actions(family)[0], True)
    found: dict[str, list[Any]] = {"pictures": [], "states": [], "scenes": [], "rewards": [], "successes": []}

    def note(seen: Any) -> None:
        found["scenes"].append(scene(simulator._env.unwrapped))
        found["pictures"].append(sha1(seen[keys[0]]) if seen and observed else None)
        found["states"].append(sha1(seen[keys[1]]) if seen else None)

    note(reset(SEED))
    for index, action in enumerate(actions(family), 1):
        step = simulator.step(action, index % EVERY == 0)
        note(step.observation)
        found["rewards"].append(step.reward)
        found["successes"].append([step.success, step.terminated])
    film = simulator.render() if observed else None
    simulator.close()
    return {
        **found,
        "film": None if film is None else sha1(film),
        "size": None if film is None else film.shape,
    }


def first_film(target: str) -> list[str]:
    """The first frame of a video, of the first and of the second episode of a simulator."""
    family, [name] = resolve(target)
    adapter = load_simulator(family)
    simulator = adapter(adapter.describe(name, {}), 0, {})
    simulator.build()
    spec = EpisodeSpec(suite=target, task=name, task_id=0, episode=0, seed=SEED, horizon=400)
    frames = []
    for _ in range(2):
        simulator.reset(spec, ObservationRequest(keys=()))
        frames.append(sha1(simulator.render()))
        simulator.step(actions(family)[0], False)
    simulator.close()
    return frames


def solved(target: str) -> list[Any]:
    """The step before, and the step after, the object was put where it belongs."""
    family, [name] = resolve(target)
    adapter = load_simulator(family)
    simulator: Any = adapter(adapter.describe(name, {}), 0, {})
    simulator.build()
    spec = EpisodeSpec(suite=target, task=name, task_id=0, episode=0, seed=SEED, horizon=400)
    simulator.reset(spec, ObservationRequest(keys=()))
    away = (
        np.full(2, 40, np.float32) if family == "pusht" else np.float32([0, -0.96, 1.16, 0, -0.3, 0, 0.1] * 2)
    )
    steps = [simulator.step(away, False)]
    env = simulator._env.unwrapped
    if family == "pusht":
        env.block.angle = env.goal_pose[2]
        env.block.position = env.goal_pose[:2].tolist()
    else:
        physics = env._env.physics
        place = {"transfer_cube": "vx300s_left/10_left_gripper_finger", "insertion": "pin"}[name]
        start = {"transfer_cube": -7, "insertion": -14}[name]  # of the cube's, or the peg's, pose
        physics.data.qpos[start : start + 3] = physics.named.data.geom_xpos[place]
    steps.append(simulator.step(away, False))
    simulator.close()
    return [[step.reward, step.success, step.terminated, step.truncated] for step in steps]


def rewards_in_one_state() -> dict[str, list[Any]]:
    """PushT's reward, and upstream's, in one state, while the set that holds the block's two parts is made anew."""
    from gym_pusht.envs.pusht import PushTEnv

    from rollout.envs.presets_upstream import PushT

    env = PushT(96, 96, CameraNames({"image": "image"}, 0))
    bare = env.unwrapped
    ours, theirs = [], []
    for seed in range(300):
        env.reset(seed=seed)
        bare.block.angle = 0.9
        bare.block.position = (263.7, 250.1)
        ours.append(bare._get_coverage())
        theirs.append(PushTEnv._get_coverage(bare))
    return {"ours": ours, "theirs": theirs}


def blind(target: str) -> list[str]:
    """The GL libraries that an episode without pictures loads: none of them opened a context."""
    family, [name] = resolve(target)
    adapter = load_simulator(family)
    simulator: Any = adapter(adapter.describe(name, {}), 0, {})
    simulator.build()
    spec = EpisodeSpec(suite=target, task=name, task_id=0, episode=0, seed=SEED, horizon=400)
    simulator.reset(spec, ObservationRequest(keys=("observation.state", "task")))
    for action in actions(family):
        simulator.step(action, True)
    contexts = simulator._env.unwrapped._env.physics._contexts
    return [] if contexts is None else [repr(contexts)]


if __name__ == "__main__":
    mode, *rest = sys.argv[1:]
    modes = {
        "upstream": upstream,
        "ours": ours,
        "unseen": lambda target: ours(target, observed=False),
        "first_film": first_film,
        "solved": solved,
        "rewards": rewards_in_one_state,
        "blind": blind,
    }
    print(json.dumps(modes[mode](*rest)))
