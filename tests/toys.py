"""Small environments, some of them misbehaving, for tests: `gym:toys:toy/Count-v0` and so on.

An episode's behaviour depends on its seed alone, so every expected number is exact.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium import spaces


class Count(gym.Env[Any, Any]):
    """Observes the step; succeeds at step `length + seed % 3` where the seed is even, else never."""

    metadata = {"render_modes": ["rgb_array"], "render_fps": 10}  # noqa: RUF012

    def __init__(self, length: int = 5, log: str | None = None, render_mode: str | None = None) -> None:
        self.render_mode = render_mode
        self.observation_space = spaces.Box(-np.inf, np.inf, (2,), np.float32)
        self.action_space = spaces.Box(-1.0, 1.0, (2,), np.float32)
        self._length = length
        self._log = log
        self._note("built")

    def _note(self, what: str) -> None:
        if self._log is not None:
            with open(self._log, "a") as file:
                file.write(f"{what} {os.getpid()}\n")

    def _seen(self) -> Any:
        return np.array([self.t, self.key], np.float32)

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.key = seed or 0
        self.t = 0
        return self._seen(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.t += 1
        self._misbehave()
        end = self.key % 2 == 0 and self.t >= self._length + self.key % 3
        return self._seen(), float(np.sum(action)), end, False, {"is_success": end}

    def _misbehave(self) -> None:
        pass

    def render(self) -> Any:
        return np.full((63, 65, 3), 20 * self.t % 256, np.uint8)

    def close(self) -> None:
        self._note("closed")


class Faulty(Count):
    """Goes wrong at step 3 of the episodes whose seed is 1 modulo 4, in the way that `how` names.

    With `once`, a path, only the first time.
    """

    def __init__(self, how: str = "raise", once: str | None = None, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self._how, self._once = how, once
        if how == "build":
            raise RuntimeError("no such robot")
        print("hello from the simulator")

    def _misbehave(self) -> None:  # noqa: PLR0912
        if self.t != 3 or self.key % 4 != 1:
            return
        if self._once is not None:
            if Path(self._once).exists():
                return
            Path(self._once).touch()
        match self._how:
            case "raise":
                raise RuntimeError("the arm fell off")
            case "exit":
                sys.exit(3)
            case "segfault":
                os.kill(os.getpid(), signal.SIGSEGV)
            case "kill":
                os.kill(os.getpid(), signal.SIGKILL)
            case "hang":
                signal.signal(signal.SIGTERM, signal.SIG_IGN)
                time.sleep(3600)
            case "flood":
                for descriptor in (1, 2):
                    os.write(descriptor, b"\x1b[2J\xff\x00" * 20_000)
            case "ask":
                input("Do you want to go on? ")
            case "hangup":
                os.closerange(3, 64)
                time.sleep(3600)
            case "garbage":
                for descriptor in range(3, 64):
                    try:
                        os.write(descriptor, b"\x05\x00\x00\x00\xc1oops")
                    except OSError:
                        continue
                time.sleep(3600)


class Echo(gym.Env[Any, Any]):
    """Takes any action space (by name) and ends with success if each action lies in it."""

    SPACES = {  # noqa: RUF012
        "box": spaces.Box(-1, 1, (2, 2), np.float64),
        "unbounded": spaces.Box(-np.inf, np.inf, (2,), np.float32),
        "discrete": spaces.Discrete(3, start=10),
        "binary": spaces.MultiBinary((2, 2)),
        "multi": spaces.MultiDiscrete([3, 4]),
        "text": spaces.Text(8, charset="aé漢"),
        "tuple": spaces.Tuple((spaces.Discrete(2), spaces.Box(0, 1, (1,)))),
        "dict": spaces.Dict({"move": spaces.Box(-1, 1, (3,)), "say": spaces.Text(4)}),
        "sequence": spaces.Sequence(spaces.Box(0, 1, (2,), np.float32)),
        "graph": spaces.Graph(spaces.Box(0, 1, (2,)), spaces.Discrete(3)),
        "oneof": spaces.OneOf((spaces.Discrete(2), spaces.Box(0, 1, (2,)))),
    }

    def __init__(self, space: str = "box", render_mode: str | None = None) -> None:
        self.render_mode = render_mode
        self.action_space = self.SPACES[space]
        self.observation_space = spaces.Dict({"last": self.action_space, "t": spaces.Discrete(10)})

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.action_space.seed(seed)
        self.t = 0
        return {"last": self.action_space.sample(), "t": 0}, {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        if not self.action_space.contains(action):
            raise ValueError(f"{action!r} is not in {self.action_space}")
        self.t += 1
        return {"last": action, "t": self.t}, 1.0, self.t >= 3, False, {"success": self.t >= 3}


class Uneven(Count):
    """Succeeds after 1 to 40 steps, whichever its seed says."""

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        self._length = 1 + (seed or 0) * 7919 % 40
        seen = super().reset(seed=seed, options=options)
        self.key = 0
        return seen


gym.register("toy/Count-v0", "toys:Count", max_episode_steps=12, order_enforce=False)
gym.register("toy/Faulty-v0", "toys:Faulty", max_episode_steps=12, order_enforce=False)
gym.register("toy/Uneven-v0", "toys:Uneven", max_episode_steps=60, order_enforce=False)
gym.register("toy/Echo-v0", "toys:Echo", max_episode_steps=12, order_enforce=False)
gym.register("toy/Endless-v0", "toys:Count", order_enforce=False)
