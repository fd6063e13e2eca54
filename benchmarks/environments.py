"""The harness's own Gymnasium environments: one that costs nothing, and one that sleeps."""

from __future__ import annotations

import ctypes
import time
from collections import deque
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces

from benchmarks.batching_work import Drawn, draw

__all__ = ["EPISODE_STEPS", "NO_OP", "SLEEPING", "NoOp", "Sleeping", "drawn_for"]

NO_OP, SLEEPING = "bench/NoOp-v0", "bench/Sleeping-v0"
EPISODE_STEPS = 500
CAMERAS, SIZE = ("front", "wrist"), 256
PR_SET_TIMERSLACK = 29


class NoOp(gymnasium.Env[Any, Any]):
    """Does nothing for `EPISODE_STEPS` steps.

    Observations: four float32, or with `images` two cameras of uint8 (256, 256, 3): 393 KB. Actions: four float32.
    """

    action_space = spaces.Box(-1.0, 1.0, (4,), np.float32)

    def __init__(self, images: bool = False) -> None:
        picture, vector = (
            spaces.Box(0, 255, (SIZE, SIZE, 3), np.uint8),
            spaces.Box(-1.0, 1.0, (4,), np.float32),
        )
        self.observation_space = spaces.Dict(dict.fromkeys(CAMERAS, picture)) if images else vector
        self._seen = self.observation_space.sample()
        self._left = 0

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        self._left = EPISODE_STEPS
        return self._seen, {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self._left -= 1
        return self._seen, 0.0, False, self._left == 0, {}


class Sleeping(gymnasium.Env[Any, Any]):
    """An episode drawn from its seed: a step, which stands for a whole chunk of LIBERO's with its frames, sleeps for as
    long as was drawn, divided by `speed`. A reset without a seed begins the next of `seeds`. It idles after the last of
    them, and between an episode's end and the next reset."""

    observation_space = spaces.Box(-1.0, 1.0, (4,), np.float32)
    action_space = spaces.Box(-1.0, 1.0, (4,), np.float32)

    def __init__(self, speed: float = 1.0, seeds: Sequence[int] = ()) -> None:
        self._speed = speed
        self._seeds = deque(seeds)
        self._seen = np.zeros(4, np.float32)
        self._todo: list[float] = []
        # A sleep may be late by 50 us otherwise, and a bound made of sleeps does not know of it.
        with suppress(OSError, AttributeError):
            ctypes.CDLL(None).prctl(PR_SET_TIMERSLACK, 1, 0, 0, 0)

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        if seed is None:
            if not self._seeds:
                return self._seen, {}
            seed = self._seeds.popleft()
        drawn = drawn_for(seed, self._speed)
        self._todo = list(reversed(drawn.chunks_s))
        time.sleep(drawn.reset_s)
        return self._seen, {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        if not self._todo:
            return self._seen, 0.0, False, False, {}
        time.sleep(self._todo.pop())
        return self._seen, 0.0, not self._todo, False, {}


def drawn_for(seed: int, speed: float) -> Drawn:
    """The episode of `Sleeping` with this seed."""
    return draw(1, speed, seed)[0]


gymnasium.register(NO_OP, f"{__name__}:NoOp")
gymnasium.register(SLEEPING, f"{__name__}:Sleeping")
