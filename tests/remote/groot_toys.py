"""An environment whose actions have three numbers, for `gr00t:`: `gym:groot_toys:toy/Wide-v0`."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium import spaces

from toys import Count


class Wide(Count):
    """Observes the step and the seed; a step's reward is the sum of its action."""

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.action_space = spaces.Box(-np.inf, np.inf, (3,), np.float32)


gym.register("toy/Wide-v0", "groot_toys:Wide", max_episode_steps=12, order_enforce=False)
