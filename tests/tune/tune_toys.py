"""Simulators that sleep in place of computing, and policies that do, so that what binds is known beforehand."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium import spaces

import rollout


class Sleeping(gym.Env[Any, Any]):
    """Every step takes `step_s`; ends with success at step `length`, if that is not 0."""

    def __init__(self, step_s: float = 0.02, length: int = 0) -> None:
        self.observation_space = spaces.Box(-1.0, 1.0, (4,), np.float32)
        self.action_space = spaces.Box(-1.0, 1.0, (2,), np.float32)
        self._step_s, self._length = step_s, length

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self._t = 0
        return np.zeros(4, np.float32), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        time.sleep(self._step_s)
        self._t += 1
        done = self._t == self._length
        return np.full(4, self._t / 1000, np.float32), float(action.sum()), done, False, {"is_success": done}


class Broken(Sleeping):
    """Fails at its second step."""

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        if self._t == 1:
            raise ValueError("the gripper fell off")
        return super().step(action)


gym.register("tune/Sleeping-v0", Sleeping, max_episode_steps=400)
gym.register("tune/Broken-v0", Broken, max_episode_steps=400)


class Slow:
    """Takes `call_s` a batch and `each_s` a decision; what it returns depends on what it sees alone."""

    spec = rollout.PolicySpec(chunk_size=2, n_action_steps=2)

    def __init__(self, call_s: float = 0.2, each_s: float = 0.001) -> None:
        self._call_s, self._each_s = call_s, each_s

    def infer(self, requests: Sequence[rollout.Request]) -> Sequence[Any]:
        time.sleep(self._call_s + self._each_s * len(requests))
        return [np.full((2, 2), self._seen(request), np.float32) for request in requests]

    def _seen(self, request: rollout.Request) -> float:
        return float(next(value for key, value in request.observation.items() if key != "task")[0])


class Quick(Slow):
    """Answers at once."""

    def __init__(self) -> None:
        super().__init__(0.0, 0.0)


class Failing(Slow):
    """Raises."""

    def infer(self, requests: Sequence[rollout.Request]) -> Sequence[Any]:
        raise RuntimeError("no such weights")
