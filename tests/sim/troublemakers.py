"""Environments that leave processes behind, die and leak; each logs what it starts to the file `log`."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import time
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium import spaces

SPECIAL = {
    "cancels": asyncio.CancelledError(),
    "exits": SystemExit(0),
    "stops": GeneratorExit(),
    "groups": BaseExceptionGroup("several", [GeneratorExit()]),
}
SLEEP = [sys.executable, "-S", "-c", "import time; time.sleep(300)"]


class Troublemaker(gym.Env[Any, Any]):
    """Three steps an episode; `how` says what goes wrong, in odd episodes where it is fatal."""

    def __init__(self, how: str = "nothing", log: str = os.devnull) -> None:
        self.action_space = spaces.Box(-1, 1, (1,), np.float32)
        self.observation_space = spaces.Box(-np.inf, np.inf, (1,), np.float32)
        self.how, self.log = how, log
        if how == "refuses":
            raise RuntimeError("the licence server is not there")
        if how == "dies":
            os._exit(3)
        if how == "orphans":
            self._start_orphans()

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.odd, self.t = bool((seed or 0) % 2), 0
        if self.how == "reset dies" and self.odd:
            os._exit(0)
        self._write(os.getpid())
        return np.zeros(1, np.float32), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.t += 1
        time.sleep({"slow": 0.7, "quick": 0.05}.get(self.how, 0.0))
        if self.how in SPECIAL and self.odd:
            raise SPECIAL[self.how]
        if self.how == "endless" and self.odd:
            time.sleep(300)
        return np.zeros(1, np.float32), 1.0, self.t >= 3, False, {"is_success": True}

    def close(self) -> None:
        if self.how == "close hangs":
            time.sleep(300)
        if self.how == "close raises":
            raise RuntimeError("eglDestroyContext")

    def _start_orphans(self) -> None:
        """A child in a session of its own, and a daemon whose parent is gone."""
        self._write(subprocess.Popen(SLEEP, start_new_session=True).pid)
        read, write = os.pipe()
        if os.fork() == 0:
            os.setsid()
            daemon = subprocess.Popen(SLEEP, start_new_session=True)
            os.write(write, str(daemon.pid).encode())
            os._exit(0)
        self._write(int(os.read(read, 20)))

    def _write(self, pid: int) -> None:
        with open(self.log, "a") as file:
            file.write(f"{pid}\n")


gym.register("trouble/Maker-v0", "troublemakers:Troublemaker", max_episode_steps=10, order_enforce=False)
gym.register("trouble/Other-v0", "troublemakers:Troublemaker", max_episode_steps=10, order_enforce=False)
