"""Runs in an interpreter of its own: Meta-World episodes by a plain loop, and by the engine's simulator, as JSON.

`plain CASE` is written straight on Meta-World, as `lerobot-eval` runs it: `MT1`, a frame rendered at every step. It
acts by the task's scripted expert, with noise; `ours CASE` reads those actions from the standard input and executes
them in chunks. CASE is a `Case` as JSON.
"""

from __future__ import annotations

import os
import sys
import warnings
from collections.abc import Callable
from typing import Any

import msgspec
import numpy as np

from libero_loop import CHUNK, Case, chunk, sha1
from rollout.engine.session import episode_digest
from rollout.envs.metaworld import MetaWorldSimulator
from rollout.sim.protocol import Build, Reset, ResetDone, Run, RunDone, Start
from rollout.sim.server import Server
from rollout.types import EpisodeSpec, ObservationRequest
from rollout.values import pack_array, unpack_array

PICTURE = "observation.images.corner2"


def plain(case: Case) -> list[dict[str, Any]]:
    """Every step of every episode."""
    import metaworld
    from metaworld.policies import ENV_POLICY_MAP

    mt1 = metaworld.MT1(case.suite, seed=42)
    size = {"height": case.size, "width": case.size}
    env = mt1.train_classes[case.suite](render_mode="rgb_array", camera_name="corner2", **size)
    env.set_task(mt1.train_tasks[0])
    env.model.cam_pos[2] = [0.75, 0.075, 0.7]
    env._freeze_rand_vec = False
    env.seeded_rand_vec = True
    episodes = []
    for seed in case.seeds:
        env.seed(seed)
        state, _ = env.reset(seed=seed)
        expert, noise = ENV_POLICY_MAP[case.suite](), np.random.default_rng(seed)
        states, frames = [_physics(env)], [_frame(env.render())]
        rewards: list[float] = []
        actions: list[np.ndarray] = []
        success = False
        while len(actions) < case.n_steps and not success:
            action = np.clip(expert.get_action(state) + noise.normal(0, 0.1, 4), -1, 1)
            actions.append(action.astype(np.float32))
            state, reward, _, _, info = env.step(actions[-1])
            success = bool(info["success"])
            rewards.append(float(reward))
            states.append(_physics(env))
            frames.append(_frame(env.render()))
        episodes.append(
            {
                "actions": np.array(actions).tolist(),
                "digest": _digest(actions, rewards, case.n_steps, success),
                "physics": states,
                "frames": frames,
            }
        )
    env.close()
    return episodes


def _physics(env: Any) -> str:
    return sha1(np.concatenate([env.data.qpos, env.data.qvel, env.data.mocap_pos.ravel()]))


def _frame(picture: np.ndarray) -> dict[str, str]:
    return {"corner2": sha1(picture[::-1, ::-1])}


def _digest(actions: Any, rewards: list[float], n_steps: int, success: bool) -> str:
    packed = pack_array(np.array(actions, np.float32))
    return episode_digest(packed, np.array(rewards), len(rewards), success, len(rewards) == n_steps, success)


def ours(case: Case) -> list[dict[str, Any]]:
    """The same actions through the worker's end of the engine, which is asked for frames once a chunk.

    `physics` and `frames` are by step; `rendered` is how many frames were.
    """
    given = msgspec.json.decode(sys.stdin.buffer.read())
    options = {"height": str(case.size), "width": str(case.size)}
    suite = MetaWorldSimulator.describe(case.suite, options)
    server = Server()
    server.handle(Start("metaworld", tuple(sys.path), {}, options))
    observe = ObservationRequest(n_obs_steps=case.n_obs_steps)
    rendered = _count_renderings()
    episodes = []
    server.handle(Build(suite, _spec(case, 0, 0).task_id))
    if case.after_another:
        server.handle(Reset(_spec(case, 3, 5), ObservationRequest(keys=()), None))
        server.handle(Run(pack_array(-np.array(given[0], np.float32))))
    for episode, (seed, actions) in enumerate(zip(case.seeds, given, strict=True)):
        spec = _spec(case, episode, seed)
        before = rendered()
        began = server.handle(Reset(spec, observe, None))
        assert isinstance(began, ResetDone), began
        env = server._simulator._env  # type: ignore[union-attr]
        physics, frames = {0: _physics(env)}, {0: _delivered(began.observation)}
        rewards: list[float] = []
        success = False
        for first in range(0, len(actions), CHUNK):
            ran = server.handle(Run(pack_array(chunk(actions, first))))
            assert isinstance(ran, RunDone), ran
            rewards += np.frombuffer(ran.rewards).tolist()
            success = bool(ran.success)
            physics[len(rewards)] = _physics(env)
            for ago, seen in enumerate(reversed(ran.observations)):
                frames[len(rewards) - ago] = _delivered(seen)
        episodes.append(
            {
                "digest": _digest(actions, rewards, case.n_steps, success),
                "physics": physics,
                "frames": frames,
                "rendered": rendered() - before,
            }
        )
    return episodes


def _spec(case: Case, episode: int, seed: int) -> EpisodeSpec:
    suite = f"metaworld:{case.suite}"
    return EpisodeSpec(
        suite=suite, task=case.suite, task_id=0, episode=episode, seed=seed, horizon=case.n_steps
    )


def _delivered(observation: Any) -> dict[str, str]:
    return {"corner2": sha1(unpack_array(observation[PICTURE]))}


def _count_renderings() -> Callable[[], int]:
    from gymnasium.envs.mujoco.mujoco_rendering import OffScreenViewer

    n_calls, render = [0], OffScreenViewer.render

    def counted(*args: Any, **kwargs: Any) -> Any:
        n_calls[0] += 1
        return render(*args, **kwargs)

    OffScreenViewer.render = counted
    return lambda: n_calls[0]


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    result = {"plain": plain, "ours": ours}[sys.argv[1]](msgspec.json.decode(sys.argv[2], type=Case))
    sys.stdout.write("\n" + msgspec.json.encode(result).decode() + "\n")
    sys.stdout.flush()
    os._exit(0)
