"""Meta-World's state as a Gymnasium environment with a list of episodes, for the peers: the episodes that ours runs."""

from __future__ import annotations

import pickle
import random
import warnings
from collections import deque
from collections.abc import Sequence
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces

__all__ = ["Experts", "MetaWorldEpisodes"]

HORIZON = 500


class MetaWorldEpisodes(gymnasium.Env[Any, Any]):
    """One task; every reset begins the next of `seeds`, as `MT1(task, seed=42)` and LeRobot's evaluation do it. After
    the last one it idles, so that whoever is done costs the others nothing.

    Observations: float32 (39,). Actions: float32 (4,). The first success ends an episode.
    """

    observation_space = spaces.Box(-np.inf, np.inf, (39,), np.float32)
    action_space = spaces.Box(-1.0, 1.0, (4,), np.float32)

    def __init__(self, task: str, seeds: Sequence[int]) -> None:
        from metaworld.env_dict import ALL_V3_ENVIRONMENTS
        from metaworld.types import Task

        environment = ALL_V3_ENVIRONMENTS[task]
        self._env = env = environment()
        env.set_task(
            Task(
                task, pickle.dumps({"rand_vec": None, "env_cls": environment, "partially_observable": False})
            )
        )
        env._freeze_rand_vec = False
        env.seeded_rand_vec = True
        env.max_path_length = HORIZON
        self._seeds = deque(seeds)
        self._idle = np.zeros(39, np.float32)
        self._is_idle = False

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        self._is_idle = not self._seeds
        if self._is_idle:
            return self._idle, {}
        seed = self._seeds.popleft()
        random.seed(seed)
        np.random.seed(seed)
        self._env.seed(seed)
        state, _ = self._env.reset()
        return state.astype(np.float32), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        if self._is_idle:
            return self._idle, 0.0, False, False, {}
        state, reward, _, truncated, info = self._env.step(action)
        success = bool(info["success"])
        return state.astype(np.float32), float(reward), success, bool(truncated), {"success": success}


class Experts:
    """Meta-World's scripted expert for each of `n` environments, in the parent, as ours runs it."""

    def __init__(self, task: str, n: int) -> None:
        from metaworld.policies import ENV_POLICY_MAP

        warnings.filterwarnings("ignore", r"Constant\(s\) may be too high", UserWarning, r"metaworld\.")
        self._make = ENV_POLICY_MAP[task]
        self._scripts = [self._make() for _ in range(n)]

    def act(self, index: int, state: np.ndarray) -> np.ndarray:
        """The action for environment `index`; float32 (4,) in [-1, 1]."""
        action: np.ndarray = self._scripts[index].get_action(state.copy())  # some scripts write into it
        clipped: np.ndarray = np.clip(action, -1, 1).astype(np.float32)
        return clipped

    def begin(self, index: int) -> None:
        """An episode ended: the next one has a script of its own."""
        self._scripts[index] = self._make()
