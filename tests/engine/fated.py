"""Environments whose episodes end as their seeds say: `gym:fated:fated/A-v0` and so on."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium import spaces

FATES = ("success", "failure", "raises", "exits", "always killed", "killed once", "killed twice")
KILLS = {"killed once": 1, "killed twice": 2}


def fate(seed: int, name: str) -> str:
    """What becomes of an episode: any seed may be any of them, and differs from task to task."""
    return FATES[(seed * 7919 + len(name) * 31 + ord(name[-1])) % 10007 % len(FATES)]


class Fated(gym.Env[Any, Any]):
    """Ends in its second step. `marks` is a directory where it counts its deaths, as nothing else outlives them."""

    observation_space = spaces.Box(0, 1, (1,), np.float32)
    action_space = spaces.Box(-1, 1, (1,), np.float32)

    def __init__(self, name: str, marks: str, render_mode: str | None = None) -> None:
        self.name, self.marks, self.render_mode = name, Path(marks), render_mode
        if name == "unbuildable":
            raise RuntimeError("no such robot")

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.fate, self.t = fate(seed or 0, self.name), 0
        self.mark = self.marks / f"{self.name}-{seed}"
        return np.zeros(1, np.float32), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.t += 1
        end = self.t == 2
        if end:
            self._meet_it()
        return np.zeros(1, np.float32), 1.0, end, False, {"is_success": end and self.fate != "failure"}

    def _meet_it(self) -> None:
        if self.fate == "raises":
            raise ValueError("the arm fell off")
        if self.fate == "exits":
            os._exit(0)
        deaths = self.mark.stat().st_size if self.mark.exists() else 0
        if self.fate == "always killed" or deaths < KILLS.get(self.fate, 0):
            with self.mark.open("a") as file:
                file.write("x")
            os.kill(os.getpid(), signal.SIGKILL)


for _name in ("A", "B", "unbuildable"):
    gym.register(
        f"fated/{_name}-v0", "fated:Fated", kwargs={"name": _name}, max_episode_steps=5, order_enforce=False
    )
