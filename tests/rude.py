"""An environment whose words are commands to a terminal: `gym:rude:rude/Rude-v0`."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium import spaces

CODES = "\x1b[2J\x1b]0;owned\x07\x9b31m\x1b[8m\r\x7f"
WORDS = f"{CODES}the gripper is {CODES}jammed"


class Rude(gym.Env[Any, Any]):
    """Raises them in its third step, or with `how=build` while it is built."""

    observation_space = spaces.Box(0, 1, (1,), np.float32)
    action_space = spaces.Box(-1, 1, (1,), np.float32)

    def __init__(self, how: str = "step", render_mode: str | None = None) -> None:
        self.render_mode = render_mode
        if how == "build":
            raise RuntimeError(WORDS)

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.t = 0
        return np.zeros(1, np.float32), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.t += 1
        if self.t == 3:
            raise type(f"Rude{CODES}Error", (RuntimeError,), {})(WORDS)
        return np.zeros(1, np.float32), 1.0, False, False, {}


gym.register("rude/Rude-v0", "rude:Rude", max_episode_steps=5, order_enforce=False)
