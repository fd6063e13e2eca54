"""Things that take for ever, for tests that interrupt them: an environment, policies, an import.

Each touches the file that `STUCK` names when it begins to.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium import spaces

from rollout import PolicySpec, Request

FOR_EVER_S = 600.0


def stick(seconds: float = FOR_EVER_S) -> None:
    Path(os.environ["STUCK"]).touch()
    time.sleep(seconds)


class Sticky(gym.Env[Any, Any]):
    """Ends with success after three steps. `where` it sticks: in `build`, or in the second `step` of odd seeds."""

    def __init__(self, where: str = "", render_mode: str | None = None) -> None:
        self.render_mode = render_mode
        self.observation_space = spaces.Box(-np.inf, np.inf, (1,), np.float32)
        self.action_space = spaces.Box(-1.0, 1.0, (2,), np.float32)
        self._where = where
        if where == "build":
            stick()

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self._key, self._t = seed or 0, 0
        return np.zeros(1, np.float32), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self._t += 1
        if self._where == "step" and self._key % 2 and self._t == 2:
            for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
                signal.signal(number, signal.SIG_IGN)
            stick()
        done = self._t >= 3
        return np.full(1, self._t, np.float32), 1.0, done, False, {"is_success": done}


class Prompt:
    """A policy of no movement, that sticks nowhere."""

    spec = PolicySpec(observation_keys=())

    def open_session(self, episode: Any, task: Any) -> Any:
        return None

    def infer(self, requests: Sequence[Request]) -> Sequence[Any]:
        return [np.zeros((1, 2), np.float32) for _ in requests]


class StuckForward(Prompt):
    def infer(self, requests: Sequence[Request]) -> Sequence[Any]:
        stick()
        return super().infer(requests)


class StuckTorch(Prompt):
    """Where an interpreter's end cannot be: in C++."""

    def infer(self, requests: Sequence[Request]) -> Sequence[Any]:
        import torch

        matrix = torch.eye(1500)
        stick(0.0)
        while True:
            matrix = matrix @ matrix


class StuckSession(Prompt):
    """Sticks in the event loop's own thread, while the live view is shown."""

    def open_session(self, episode: Any, task: Any) -> Any:
        stick()


def stuck_factory() -> Prompt:
    stick()
    return Prompt()


def slow_disk() -> Prompt:
    """When four episodes are on record, this process's disk takes its time; a run's end asks six times for it."""
    fsync = os.fsync

    def slowly(descriptor: int) -> None:
        fsync(descriptor)
        journal = Path("run/episodes.jsonl")
        if journal.exists() and len(journal.read_bytes().splitlines()) == 1 + 4:
            stick(0.2)

    os.fsync = slowly
    return Prompt()


gym.register(
    "stuck/Sticky-v0", "stuck:Sticky", max_episode_steps=5, order_enforce=False, disable_env_checker=True
)
