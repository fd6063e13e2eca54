"""Environments that take their time: `gym:paced:paced/Sleeps-v0` sleeps in each step, `paced/Computes-v0` computes.

Episodes last `steps`; that of seed 1000, the first of a run, `first` where that is given.
"""

from __future__ import annotations

import time
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium import spaces


class Sleeps(gym.Env[Any, Any]):
    """Each step takes `step_s` of wall time."""

    def __init__(self, step_s: float = 0.02, steps: int = 20, first: int | None = None) -> None:
        self.observation_space = spaces.Box(-np.inf, np.inf, (1,), np.float32)
        self.action_space = spaces.Box(-1.0, 1.0, (1,), np.float32)
        self._step_s, self._steps, self._first = step_s, steps, first

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self._left = self._first if self._first is not None and seed == 1000 else self._steps
        return np.zeros(1, np.float32), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self._left -= 1
        self._take()
        return np.zeros(1, np.float32), 0.0, self._left <= 0, False, {"is_success": self._left <= 0}

    def _take(self) -> None:
        time.sleep(self._step_s)


class Computes(Sleeps):
    """Each step takes `step_s` of CPU time."""

    def _take(self) -> None:
        until = time.process_time() + self._step_s
        while time.process_time() < until:
            pass


gym.register("paced/Sleeps-v0", "paced:Sleeps", max_episode_steps=500)
gym.register("paced/Computes-v0", "paced:Computes", max_episode_steps=500)
