"""The end-to-end workloads' evaluations: what is evaluated, and how an episode's record is told.

Standard library and numpy. An evaluation is of `episodes` episodes of every task, seeds 1000, 1001, … as `lerobot-eval`
counts them. Its time begins with packages imported and a policy made, and ends with the last result: workers, scenes
and closing are in it, on every side.
"""

from __future__ import annotations

import hashlib
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.job import Unavailable

__all__ = ["SEED", "Clock", "Evaluation", "Recorded", "clocked", "record", "render_in_software"]

SEED = 1000
ACTIONS = {"libero": 7, "metaworld": 4}
STATES = {"libero": 8, "metaworld": 4}


def render_in_software() -> None:
    """As ours does with `render="cpu"`, for a peer that would look for a display; the user's own setting wins. To be
    called before any simulator is imported."""
    os.environ.setdefault("MUJOCO_GL", "osmesa")
    os.environ.setdefault("PYOPENGL_PLATFORM", os.environ["MUJOCO_GL"])


@dataclass(frozen=True)
class Evaluation:
    """A case's parameters."""

    family: str  # libero (spatial) or metaworld
    tasks: list[Any]  # LIBERO: task ids; Meta-World: names
    episodes: int  # of each task
    chunk: int
    horizon: int
    size: int  # of a picture's side, in pixels
    policy: str = "small"  # or recorded: the scripted expert's actions, a chunk for each look at the pictures
    batch: int = 2  # the peers' environments

    @classmethod
    def of(cls, case: dict[str, Any]) -> Evaluation:
        """What of `case` is an evaluation's."""
        return cls(**{name: case[name] for name in cls.__dataclass_fields__ if name in case})

    @property
    def policy_shape(self) -> dict[str, int]:
        """What `SmallPolicy` is made with."""
        cameras = 2 if self.family == "libero" else 1
        states, actions = STATES[self.family], ACTIONS[self.family]
        return {"cameras": cameras, "states": states, "actions": actions, "chunk": self.chunk}


def record(
    task: int, episode: int, actions: np.ndarray, success: bool, sum_reward: float
) -> tuple[int, int, int, bool, float, str]:
    """(task, episode, steps, success, sum of rewards, digest of the executed actions).

    Equal where two sides ran the same episode; `task` counts from 0 in the order given.
    """
    executed = np.ascontiguousarray(actions, np.float32)
    digest = hashlib.sha1(executed.tobytes()).hexdigest()[:12]
    return task, episode, len(executed), bool(success), round(float(sum_reward), 4), digest


@dataclass
class Clock:
    """What a block took, in seconds: by the clock, and of all cores."""

    wall_s: float = 0.0
    parent_cpu_s: float = 0.0
    children_cpu_s: float = 0.0  # of children that have ended


@contextmanager
def clocked() -> Iterator[Clock]:
    """Filled in at the end of the block."""
    clock, began, before = Clock(), time.perf_counter(), os.times()
    yield clock
    after = os.times()
    clock.wall_s = time.perf_counter() - began
    clock.parent_cpu_s = after.user + after.system - before.user - before.system
    clock.children_cpu_s = (
        after.children_user + after.children_system - before.children_user - before.children_system
    )


@dataclass
class Recorded:
    """The scripted expert's actions, episode by episode: `find` reads what `save` wrote into the user's cache."""

    actions: dict[tuple[int, int], np.ndarray] = field(
        default_factory=dict
    )  # (task, episode): float32 (steps, A)

    def chunk(self, task: int, episode: int, step: int, size: int) -> np.ndarray:
        """The `size` actions from `step` on, the last one repeated beyond the end."""
        actions = self.actions[task, episode]
        return actions[np.minimum(np.arange(step, step + size), len(actions) - 1)]

    def save(self, evaluation: Evaluation) -> None:
        """Where `find` looks."""
        path = _cached(evaluation)
        path.parent.mkdir(parents=True, exist_ok=True)
        partial = path.with_name(f"{os.getpid()}-{path.name}")
        np.savez(partial, **{f"{task}/{episode}": each for (task, episode), each in self.actions.items()})
        os.replace(partial, path)

    @classmethod
    def find(cls, evaluation: Evaluation) -> Recorded:
        """Raises `Unavailable` where nothing was recorded yet."""
        path = _cached(evaluation)
        if not path.is_file():
            raise Unavailable(
                "the expert's actions are not recorded yet: measure rollout first, it records them"
            )
        with np.load(path) as file:
            keys = {name: name.split("/") for name in file.files}
            return cls({(int(task), int(episode)): file[name] for name, (task, episode) in keys.items()})


def _cached(evaluation: Evaluation) -> Path:
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "rollout" / "bench"
    tasks = "-".join(map(str, evaluation.tasks))
    return cache / f"expert-{evaluation.family}-{tasks}-{evaluation.episodes}-{evaluation.horizon}.npz"
