"""Gymnasium's AsyncVectorEnv around LIBERO as it comes: every step rendered, every reset hard, everybody in step.

One process a task, the same episodes in the same order as ours: nobody builds a scene that he will not use.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from functools import partial
from typing import Any

import gymnasium
import numpy as np
import torch
from gymnasium import spaces

from benchmarks.evaluations import SEED, Evaluation, clocked, record, render_in_software
from benchmarks.job import Job, Measured, Unavailable, answer
from benchmarks.small_policy import SmallPolicy
from rollout.envs import libero_files
from rollout.envs.libero import axis_angle

CAMERAS = ("agentview", "robot0_eye_in_hand")
NO_OP = (0, 0, 0, 0, 0, 0, -1)
SETTLE_STEPS = 10


class LiberoEpisodes(gymnasium.Env[Any, Any]):
    """A task's episodes, one a reset, with the semantics of LeRobot's evaluation. After the last one it idles, so that
    whoever is done costs the others nothing."""

    action_space = spaces.Box(-1.0, 1.0, (7,), np.float32)

    def __init__(self, task: int, evaluation: Evaluation) -> None:
        size, self._evaluation, self._task = evaluation.size, evaluation, task
        picture = spaces.Box(0, 255, (size, size, 3), np.uint8)
        state = spaces.Box(-np.inf, np.inf, (8,), np.float32)
        self.observation_space = spaces.Dict({**dict.fromkeys(CAMERAS, picture), "state": state})
        self._env: Any = None
        self._episode = -1
        self._steps = 0
        self._seen: Any = None

    def _build(self) -> None:
        libero_files.prepare()
        from libero.libero.benchmark import get_benchmark
        from libero.libero.envs import OffScreenRenderEnv

        suite = get_benchmark("libero_spatial")()
        size = self._evaluation.size
        self._init_states = suite.get_task_init_states(self._task)
        self._env = OffScreenRenderEnv(
            bddl_file_name=suite.get_task_bddl_file_path(self._task), camera_heights=size, camera_widths=size
        )

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        if self._env is None:
            self._build()
        self._episode, self._steps = self._episode + 1, 0
        if self._idles:
            return self._seen, {}
        random.seed(SEED + self._episode)
        np.random.seed(SEED + self._episode)
        self._env.reset()
        raw = self._env.set_init_state(self._init_states[self._episode % len(self._init_states)])
        for _ in range(SETTLE_STEPS):
            raw, _, _, _ = self._env.step(NO_OP)
        return self._observation(raw), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        if self._idles:
            return self._seen, 0.0, False, False, {}
        raw, reward, success, _ = self._env.step(action)
        self._steps += 1
        truncated = self._steps == self._evaluation.horizon
        return self._observation(raw), float(reward), bool(success), truncated, {}

    def close(self) -> None:
        """Free the scene."""
        if self._env is not None:
            self._env.close()

    @property
    def _idles(self) -> bool:
        return self._episode >= self._evaluation.episodes

    def _observation(self, raw: Any) -> Any:
        parts = (raw["robot0_eef_pos"], axis_angle(raw["robot0_eef_quat"]), raw["robot0_gripper_qpos"])
        pictures = {camera: np.ascontiguousarray(raw[f"{camera}_image"][::-1, ::-1]) for camera in CAMERAS}
        self._seen = {**pictures, "state": np.concatenate(parts).astype(np.float32)}
        return self._seen


class Queues:
    """The policy's chunks, each environment's played to its end."""

    def __init__(self, evaluation: Evaluation, n: int) -> None:
        self._policy = SmallPolicy(**evaluation.policy_shape).eval()
        self._left: list[Sequence[np.ndarray]] = [()] * n

    def begin(self, index: int) -> None:
        """A new episode of environment `index`."""
        self._left[index] = ()

    @torch.inference_mode()
    def act(self, seen: Any) -> np.ndarray:
        """An action for each environment: float32 (n, 7)."""
        empty = [index for index, left in enumerate(self._left) if not len(left)]
        if empty:
            pictures = [
                torch.from_numpy(seen[camera][empty]).permute(0, 3, 1, 2).float() / 255 for camera in CAMERAS
            ]
            chunks = self._policy(pictures, torch.from_numpy(seen["state"][empty])).numpy()
            for index, chunk in zip(empty, chunks, strict=True):
                self._left[index] = chunk
        actions = np.stack([left[0] for left in self._left])
        self._left = [left[1:] for left in self._left]
        return actions


def measure(job: Job) -> Measured:
    """Seconds of the evaluation."""
    render_in_software()
    evaluation = Evaluation.of(job.case)
    if evaluation.policy != "small":
        raise Unavailable("plays the small policy alone")
    torch.set_num_threads(1)
    queues = Queues(evaluation, len(evaluation.tasks))
    with clocked() as clock:
        envs = gymnasium.vector.AsyncVectorEnv(
            [partial(LiberoEpisodes, task, evaluation) for task in evaluation.tasks], context="forkserver"
        )
        told = play(envs, queues, evaluation)
        envs.close()
    return Measured(clock.wall_s, {**clock.__dict__, "records": told})


def play(envs: Any, queues: Queues, evaluation: Evaluation) -> list[Any]:
    """Every task's episodes, and their records."""
    n = len(evaluation.tasks)
    seen, _ = envs.reset()
    actions: list[list[np.ndarray]] = [[] for _ in range(n)]
    rewards, resetting, told = np.zeros(n), np.zeros(n, bool), []
    done = np.zeros(n, int)
    while (done < evaluation.episodes).any():
        acted = queues.act(seen)
        seen, reward, terminated, truncated, _ = envs.step(acted)
        ended = (terminated | truncated) & ~resetting
        for index in np.flatnonzero(~resetting & (done < evaluation.episodes)):
            actions[index].append(acted[index])
            rewards[index] += reward[index]
        for index in np.flatnonzero(resetting):
            queues.begin(index)
        for index in np.flatnonzero(ended):
            told.append(
                record(index, done[index], np.stack(actions[index]), terminated[index], rewards[index])
            )
            actions[index], rewards[index] = [], 0.0
            done[index] += 1
        resetting = ended  # Gymnasium resets in a step of its own, whose action is ignored
    return [[int(task), int(episode), *rest] for task, episode, *rest in sorted(told)]


if __name__ == "__main__":
    answer(measure)
