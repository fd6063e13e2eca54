"""Simulators that each break one promise, named by their suite: `broken:stale_frame` and so on."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Mapping
from typing import Any, ClassVar, Literal

import numpy as np

from rollout.envs.base import Requirement, Step
from rollout.envs.observations import STATE, bounded, check_keys, image, image_key, vector
from rollout.envs.options import whole_number
from rollout.types import EpisodeSpec, Observation, ObservationRequest, SuiteInfo, Task, TaskInfo

TOP = image_key("top")
BUGS = (
    "none",
    "action_refused",
    "any_key",
    "any_option",
    "chatty",
    "closed_once",
    "crash",
    "eager_import",
    "every_key",
    "film_moves",
    "float_film",
    "forgets_nothing",
    "frozen_frame",
    "key_missing",
    "leaking_rng",
    "looking_moves",
    "loud_end",
    "no_rule",
    "numpy_flags",
    "other_horizon",
    "outside",
    "picture_of_both",
    "read_only",
    "reward_of_looking",
    "shared_buffer",
    "stale_frame",
    "wrong_dtype",
    "zero_horizon",
)


class BrokenSimulator:
    """A point that is pushed about and seen from above."""

    family: ClassVar[str] = "broken"
    names: ClassVar[tuple[str, ...]] = BUGS
    aliases: ClassVar[Mapping[str, str]] = {}
    requires: ClassVar[tuple[Requirement, ...]] = (Requirement("wave", "it comes with Python"),)
    options: ClassVar[Mapping[str, str]] = {"size": "height and width of the pictures"}
    protocols: ClassVar[Mapping[str, Mapping[str, str]]] = {}
    needs_gl: ClassVar[Literal["always", "cameras", "never"]] = "never"
    worker_memory_gb: ClassVar[float] = 0.1
    build_s: ClassVar[float] = 0.0
    step_s: ClassVar[float] = 0.0

    info: TaskInfo

    @classmethod
    def expand(cls, name: str) -> tuple[str, ...]:
        return (name,)

    @classmethod
    def describe(cls, name: str, options: Mapping[str, str]) -> SuiteInfo:
        if name != "any_option":
            _size(options)
        horizon = 0 if name == "zero_horizon" else 40
        task = Task(task="go", task_id=0, instruction="go to the mark", horizon=horizon)
        return SuiteInfo(suite=f"{cls.family}:{name}", tasks=(task,))

    def __init__(self, suite: SuiteInfo, task_id: int, options: Mapping[str, str]) -> None:
        self._bug = suite.suite.partition(":")[2]
        if self._bug == "eager_import":
            import wave  # noqa: F401
        task = suite.task(task_id)
        size = _size(options)
        self.info = TaskInfo(
            suite=suite.suite,
            task=task.task,
            task_id=task_id,
            instruction=task.instruction,
            horizon=50 if self._bug == "other_horizon" else task.horizon,
            fps=10,
            action_space=bounded(-np.ones(2, np.float32), np.ones(2, np.float32)),
            observation_space={
                TOP: image(size, size),
                STATE: bounded(-np.ones(4, np.float32), np.ones(4, np.float32))
                if self._bug == "outside"
                else vector(4),
            },
            success_rule=None if self._bug == "no_rule" else "near the mark",
        )
        self._size = size
        self._speed = np.zeros(2)
        self._buffer = np.zeros(4, np.float32)
        self._frame: np.ndarray | None = None

    def build(self) -> None:
        self._open = True

    def reset(self, spec: EpisodeSpec, observe: ObservationRequest) -> Observation:
        if self._bug != "any_key":
            check_keys(observe, self.info)
        self._draw = np.random.default_rng(spec.seed)
        self._at = self._draw.uniform(-0.1, 0.1, 2)
        if self._bug != "forgets_nothing":
            self._speed = np.zeros(2)
        self._observe = observe
        if self._bug != "frozen_frame":
            self._frame = None
        self._looked = False
        return self._observation()

    def step(self, action: Any, observe: bool) -> Step:
        if self._bug == "crash":
            os.kill(os.getpid(), signal.SIGSEGV)
        if self._bug == "action_refused" and np.abs(action).max() > 0.5:
            raise ValueError("too fast")
        noise = np.random.normal(size=2) if self._bug == "leaking_rng" else self._draw.normal(size=2)
        self._speed = 0.9 * self._speed + 0.01 * action + 0.001 * noise
        self._at = self._at + self._speed
        if not (self._bug == "frozen_frame" or (self._bug == "stale_frame" and not self._looked)):
            self._frame = None
        self._looked = observe
        success: Any = bool(np.abs(self._at).max() < 0.05)
        reward = -float(np.linalg.norm(self._at))
        if self._bug == "reward_of_looking":
            reward -= observe
        looked = self._observation() if observe or self._bug == "chatty" else None
        if self._bug == "numpy_flags":
            success = np.bool_(success)
        return Step(reward, False, False, success, looked)

    def render(self) -> Any:
        if self._bug == "film_moves":
            self._at = self._at + 0.01
        picture = np.full((self._size, self._size, 3), 255, np.uint8)
        row, column = ((np.clip(self._at, -1, 1) / 2 + 0.5) * (self._size - 1)).astype(int)
        picture[row, column] = (0, 0, min(255, int(1e4 * abs(self._at[0])) % 256))
        return picture.astype(np.float64) if self._bug == "float_film" else picture

    def close(self) -> None:
        if self._bug == "closed_once" and not self._open:
            raise RuntimeError("closed already")
        self._open = False
        if self._bug == "loud_end":
            sys.modules["loud"] = _Loud()  # type: ignore[assignment]

    def _observation(self) -> Observation:
        if self._bug == "looking_moves":
            self._at = self._at + 0.001 * self._draw.normal(size=2)
        wants = (lambda key: True) if self._bug == "every_key" else self._observe.wants
        observation: Observation = {}
        if wants(TOP):
            observation[TOP] = self._picture()
        if wants(STATE) and self._bug != "key_missing":
            observation[STATE] = self._state()
        return observation

    def _picture(self) -> np.ndarray:
        if self._frame is None:
            self._frame = self.render()
        picture = self._frame.copy()
        if self._bug == "read_only":
            picture.flags.writeable = False
        if self._bug == "picture_of_both" and self._observe.wants(STATE):
            picture[0, 0] = 7
        return picture

    def _state(self) -> np.ndarray:
        state = np.concatenate([self._at, 100 * self._speed])
        if self._bug == "wrong_dtype":
            return state
        if self._bug == "outside":
            state[2:] = 2
        if self._bug == "shared_buffer":
            self._buffer[:] = state
            return self._buffer
        return state.astype(np.float32)


class IncompleteSimulator(BrokenSimulator):
    """It says nothing of its memory, lacks a method, and has an alias that leads nowhere."""

    family = "incomplete"
    names = ("none",)
    aliases: ClassVar[Mapping[str, str]] = {"incomplete:old": "incomplete:gone"}
    worker_memory_gb: Any = None
    render: Any = None


class _Loud:
    def __del__(self) -> None:
        raise RuntimeError("no context any more")


def _size(options: Mapping[str, str]) -> int:
    return whole_number(options, "size", 16, least=8, most=64)
