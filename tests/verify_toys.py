"""An environment that keeps the promise of the same result, or breaks it: `gym:verify_toys:verify/Drift-v0`.

Its episodes end at different steps, so that batches mix decisions of every age.
"""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium import spaces


class Drift(gym.Env[Any, Any]):
    """A walk that an action pushes, of 100 to 180 steps; `forgets` names what a reset leaves out."""

    def __init__(self, forgets: str = "nothing", render_mode: str | None = None) -> None:
        self.render_mode = render_mode
        self.observation_space = spaces.Box(-np.inf, np.inf, (3,), np.float32)
        self.action_space = spaces.Box(-1.0, 1.0, (2,), np.float32)
        self._forgets, self._resets = forgets, 0

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self._resets += 1
        self._t, self._length = 0, 100 + (seed or 0) % 5 * 20
        self._position = self.np_random.normal(size=3)
        if self._forgets == "position":
            self._position += self._resets
        if self._forgets == "length":
            self._length += self._resets
        return self._position.astype(np.float32), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self._t += 1
        self._position[:2] += action
        self._position[2] = self.np_random.normal()
        if self._forgets == "wind" and self._t == 4:
            self._position[0] += self._resets
        reward = float(action.sum()) + (self._resets if self._forgets == "reward" else 0)
        end = self._t >= self._length
        if self._forgets == "everything" and self._t == 3:
            raise RuntimeError("the arm fell off")
        return self._position.astype(np.float32), reward, end, False, {"is_success": self._position[0] > 0}


gym.register("verify/Drift-v0", "verify_toys:Drift", order_enforce=False)
