"""Environments to be killed in: short episodes whose every number follows from the seed and the actions.

`CHAOS_STEP_S` is how long a step takes (seconds); an environment that starts processes puts `CHAOS_MARK` of its own
environment variables into theirs, as every process does, and by that a test finds them.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium import spaces

from rollout import Policy
from rollout.policies.builtin import RandomPolicy

STEP_S = float(os.environ.get("CHAOS_STEP_S", "0.001"))


class Walk(gym.Env[Any, Any]):
    """A random walk, pushed by the actions: 3 to 3 + `spread` steps; success where it ends above zero."""

    metadata = {"render_modes": ["rgb_array"], "render_fps": 10}  # noqa: RUF012

    def __init__(self, spread: int = 20, render_mode: str | None = None) -> None:
        self.render_mode = render_mode
        self.observation_space = spaces.Box(-np.inf, np.inf, (3,), np.float64)
        self.action_space = spaces.Box(-1.0, 1.0, (2,), np.float32)
        self._spread = spread

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self._t, self._place = 0, 0.0
        self._length = 3 + int(self.np_random.integers(self._spread))
        return self._seen(), {}

    def _seen(self) -> Any:
        return np.array([self._t, self._place, self._length])

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        time.sleep(STEP_S)
        self._t += 1
        self._place += float(np.sum(action)) + float(self.np_random.normal())
        ended = self._t >= self._length
        return self._seen(), self._place, ended, False, {"is_success": ended and self._place > 0}

    def render(self) -> Any:
        return np.full((32, 32, 3), self._t * 7 % 256, np.uint8)


class WithChildren(Walk):
    """Starts processes that outlive it: one of its own, one in a session of its own, and a grandchild of such a one."""

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        sleep = [sys.executable, "-c", "import time; time.sleep(600)"]
        orphan = [
            sys.executable,
            "-c",
            f"import subprocess; subprocess.Popen({sleep!r}, start_new_session=True)",
        ]
        self._started = [
            subprocess.Popen(command, start_new_session=apart)
            for command, apart in ((sleep, False), (sleep, True), (orphan, True))
        ]


for name, cls, spread in (("Short", "Walk", 20), ("Long", "Walk", 40), ("Children", "WithChildren", 20)):
    gym.register(
        f"chaos/{name}-v0",
        f"chaos_env:{cls}",
        kwargs={"spread": spread},
        max_episode_steps=30,
        order_enforce=False,
        disable_env_checker=True,
    )


def killed_at_a_sync() -> Policy:
    """The random policy; its process is killed when it asks the disk for the `CHAOS_SYNC`th time to keep a file."""
    left, fsync = int(os.environ["CHAOS_SYNC"]), os.fsync

    def counted(descriptor: int) -> None:
        nonlocal left
        left -= 1
        if left == 0:
            os.kill(os.getpid(), signal.SIGKILL)
        fsync(descriptor)

    os.fsync = counted
    return RandomPolicy()
