"""Two small pictures and a state that answer to what a policy does: `gym:cameras_env:cameras/Reach-v0` and so on."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium import spaces


class Cameras(gym.Env[Any, Any]):
    """A point in the plane, drawn by two cameras; actions push it about. Episodes end after `12 + seed % 4` steps."""

    task_description = "push the point about"

    def __init__(self, state: int = 3, action: int = 2, size: int = 32, cameras: int = 2) -> None:
        picture = spaces.Box(0, 255, (size, size, 3), np.uint8)
        pixels = spaces.Dict({"front": picture, "wrist": picture}) if cameras == 2 else picture
        vector = spaces.Box(-np.inf, np.inf, (state,), np.float64)
        self.observation_space = spaces.Dict({"pixels": pixels, "agent_pos": vector})
        self.action_space = spaces.Box(-np.inf, np.inf, (action,), np.float32)
        self._state, self._size, self._cameras = state, size, cameras

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self._length, self._t = 12 + (seed or 0) % 4, 0
        self._at = self.np_random.uniform(-1, 1, self._state)
        return self._seen(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self._t += 1
        push = np.resize(np.asarray(action, np.float64), self._state)
        self._at = np.tanh(self._at + 0.3 * push)
        done = self._t >= self._length
        return self._seen(), float(self._at[0]), done, False, {"is_success": bool(self._at.sum() > 0)}

    def _seen(self) -> dict[str, Any]:
        rows, columns = np.mgrid[0 : self._size, 0 : self._size] / self._size
        front = np.sin(np.stack([rows, columns, rows + columns], -1) * 6 + self._at[0] * 3)
        wrist = np.cos(np.stack([columns, rows, rows * columns], -1) * 9 + self._at[-1] * 3 + self._t)
        front, wrist = ((127.5 * (picture + 1)).astype(np.uint8) for picture in (front, wrist))
        pixels = {"front": front, "wrist": wrist} if self._cameras == 2 else front
        return {"pixels": pixels, "agent_pos": self._at.copy()}


gym.register("cameras/Reach-v0", "cameras_env:Cameras", max_episode_steps=20)
gym.register("cameras/Single-v0", "cameras_env:Cameras", max_episode_steps=20, kwargs={"cameras": 1})
