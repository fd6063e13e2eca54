"""Runs in an interpreter of its own: LIBERO episodes by a plain loop, and by the engine's simulator, as JSON.

`plain CASE` is written straight on LIBERO, with `lerobot-eval`'s seeds and settings: hard resets, every camera rendered
at every step. It acts by itself (reaches for the task's objects, pushes, closes the gripper, with noise) and tells its
actions; `ours CASE` reads them from the standard input and executes them in chunks. CASE is a `Case` as JSON.
"""

from __future__ import annotations

import hashlib
import os
import random
import sys
from collections.abc import Callable, Sequence
from typing import Any

import msgspec
import numpy as np
from msgspec import Struct

from rollout.engine.session import episode_digest
from rollout.envs import libero_files
from rollout.envs.libero import LiberoSimulator
from rollout.sim.protocol import Build, Reset, ResetDone, Run, RunDone, Start
from rollout.sim.server import Server
from rollout.types import EpisodeSpec, ObservationRequest, SuiteInfo
from rollout.values import pack_array, unpack_array

CHUNK = 8
CAMERAS = {"image": "agentview", "image2": "robot0_eye_in_hand"}


class Case(Struct, frozen=True, kw_only=True):
    """What both sides run: an episode for each seed, one after the other on one simulator."""

    suite: str
    task_id: int
    n_steps: int = 100
    seeds: tuple[int, ...] = (1000, 1001)
    size: int = 64  # of the pictures, in pixels
    cameras: tuple[str, ...] = ("image", "image2")
    n_obs_steps: int = 1
    reset: str = "fast"
    after_another: bool = False  # the engine's simulator has had an episode before that nobody compares


def chunk(actions: Sequence[Any], first: int) -> np.ndarray:
    """A whole chunk, be the episode at its end or not: a policy does not know either."""
    whole = np.zeros((CHUNK, len(actions[0])), np.float32)
    part = actions[first : first + CHUNK]
    whole[: len(part)] = part
    return whole


def sha1(array: np.ndarray) -> str:
    return hashlib.sha1(np.ascontiguousarray(array).tobytes()).hexdigest()


def plain(case: Case) -> list[dict[str, Any]]:
    """Every step of every episode."""
    libero_files.prepare()
    from libero.libero.benchmark import get_benchmark
    from libero.libero.envs import OffScreenRenderEnv

    suite = get_benchmark(f"libero_{case.suite}")()
    bddl_file = suite.get_task_bddl_file_path(case.task_id)
    env = OffScreenRenderEnv(
        bddl_file_name=bddl_file,
        camera_names=[CAMERAS[name] for name in case.cameras],
        camera_heights=case.size,
        camera_widths=case.size,
    )
    init_states = suite.get_task_init_states(case.task_id)
    episodes = []
    for episode, seed in enumerate(case.seeds):
        random.seed(seed)
        env.seed(seed)
        env.reset()
        raw = env.set_init_state(init_states[episode % len(init_states)])
        for _ in range(10):
            raw, _, _, _ = env.step([0] * 6 + [-1])
        start = env.sim.get_state().qpos[9:].copy()  # behind the arm's and the fingers'
        physics, frames = [_physics(env)], [_frames(raw)]
        rewards: list[float] = []
        actions: list[np.ndarray] = []
        act = Pusher(env, seed)
        while len(actions) < case.n_steps and not (rewards and rewards[-1] > 0):
            actions.append(act(raw))
            raw, reward, _, _ = env.step(actions[-1])
            rewards.append(float(reward))
            physics.append(_physics(env))
            frames.append(_frames(raw))
        episodes.append(
            {
                "actions": np.array(actions).tolist(),
                "digest": _digest(actions, rewards, case.n_steps),
                "physics": physics,
                "frames": frames,
                "moved": float(np.abs(env.sim.get_state().qpos[9:] - start).max()),
            }
        )
    env.close()
    return episodes


def _physics(env: Any) -> str:
    return sha1(env.sim.get_state().flatten())


def _frames(raw: Any) -> dict[str, str]:
    seen = {name: raw.get(f"{camera}_image") for name, camera in CAMERAS.items()}
    return {name: sha1(np.flip(picture, (0, 1))) for name, picture in seen.items() if picture is not None}


def _digest(actions: Any, rewards: Sequence[float], n_steps: int) -> str:
    success = rewards[-1] > 0
    packed = pack_array(np.array(actions, np.float32))
    return episode_digest(packed, np.array(rewards), len(rewards), success, len(rewards) == n_steps, success)


class Pusher:
    """Reaches for one object of the scene after the other, through whatever stands in the way."""

    def __init__(self, env: Any, seed: int) -> None:
        scene = env.env
        named = [name for name in scene.obj_of_interest if name in scene.objects_dict]
        self._objects = named or list(scene.objects_dict)
        self._draw = np.random.default_rng(seed)
        self._step = 0

    def __call__(self, raw: Any) -> np.ndarray:
        phase, self._step = self._step % 50, self._step + 1
        name = self._objects[self._step // 50 % len(self._objects)]
        target = raw[f"{name}_pos"] + np.array([0, 0, 0.0 if phase > 15 else 0.08])
        if phase > 35:  # sideways, with whatever is in reach
            target = target + np.array([0.1, 0.15, 0.05])
        action = self._draw.normal(0, 0.1, 7)
        action[:3] += 1.5 * (target - raw["robot0_eef_pos"]) / 0.05
        action[6] = 1 if 25 < phase < 45 else -1
        return np.clip(action, -1, 1).astype(np.float32)


def ours(case: Case) -> list[dict[str, Any]]:
    """The same actions through the worker's end of the engine, which is asked for frames once a chunk.

    `physics` and `frames` are by step; `rendered` is how many frames were.
    """
    given = msgspec.json.decode(sys.stdin.buffer.read())
    options = {"height": str(case.size), "width": str(case.size), "reset": case.reset}
    suite = LiberoSimulator.describe(case.suite, options)
    server = Server()
    server.handle(Start("libero", tuple(sys.path), {}, options))
    keys = tuple(f"observation.images.{name}" for name in case.cameras)
    observe = ObservationRequest(keys=keys, n_obs_steps=case.n_obs_steps)
    rendered = _count_renderings()
    episodes = []
    server.handle(Build(suite.only(case.task_id), case.task_id))
    if case.after_another:
        spec = _spec(case, suite, 3, 5)
        server.handle(Reset(spec, ObservationRequest(keys=()), None))
        server.handle(Run(pack_array(-np.array(given[0], np.float32))))
    for episode, (seed, actions) in enumerate(zip(case.seeds, given, strict=True)):
        spec = _spec(case, suite, episode, seed)
        before = rendered()
        began = server.handle(Reset(spec, observe, None))
        assert isinstance(began, ResetDone), began
        env = server._simulator._env  # type: ignore[union-attr]
        physics, frames = {0: _physics(env)}, {0: _delivered(began.observation)}
        rewards: list[float] = []
        for first in range(0, len(actions), CHUNK):
            ran = server.handle(Run(pack_array(chunk(actions, first))))
            assert isinstance(ran, RunDone), ran
            rewards += np.frombuffer(ran.rewards).tolist()
            physics[len(rewards)] = _physics(env)
            for ago, seen in enumerate(reversed(ran.observations)):
                frames[len(rewards) - ago] = _delivered(seen)
        episodes.append(
            {
                "digest": _digest(actions, rewards, case.n_steps),
                "physics": physics,
                "frames": frames,
                "rendered": rendered() - before,
            }
        )
    return episodes


def _spec(case: Case, suite: SuiteInfo, episode: int, seed: int) -> EpisodeSpec:
    return EpisodeSpec(
        suite=suite.suite,
        task=suite.task(case.task_id).task,
        task_id=case.task_id,
        episode=episode,
        seed=seed,
        init_state=episode,
        horizon=case.n_steps,
    )


def _delivered(observation: Any) -> dict[str, str]:
    return {key.rpartition(".")[2]: sha1(unpack_array(picture)) for key, picture in observation.items()}


def _count_renderings() -> Callable[[], int]:
    from robosuite.utils.binding_utils import MjRenderContext

    n_calls, render = [0], MjRenderContext.render

    def counted(*args: Any, **kwargs: Any) -> Any:
        n_calls[0] += 1
        return render(*args, **kwargs)

    MjRenderContext.render = counted
    return lambda: n_calls[0]


if __name__ == "__main__":
    result = {"plain": plain, "ours": ours}[sys.argv[1]](msgspec.json.decode(sys.argv[2], type=Case))
    sys.stdout.write("\n" + msgspec.json.encode(result).decode() + "\n")
    sys.stdout.flush()
    os._exit(0)  # robosuite's destructors print tracebacks
