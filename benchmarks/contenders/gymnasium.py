"""Gymnasium's `AsyncVectorEnv`: shared memory, and by default a copy of all observations at every step."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import gymnasium
import numpy as np

from benchmarks.job import Job, answer
from benchmarks.vectorised import Vector, measure_vector


class AsyncVector:
    """As its own documentation uses it. `copy` False: observations are views, valid until the next step."""

    resets_in_step_of_its_own = True

    def __init__(self, makers: Sequence[Callable[[], Any]], job: Job) -> None:
        copy = job.case.get("copy", True)
        self._envs = gymnasium.vector.AsyncVectorEnv(makers, shared_memory=True, copy=copy)
        self._terminated = np.zeros(len(makers), bool)

    def reset(self) -> Any:
        """Observations, stacked."""
        return self._envs.reset()[0]

    def step(self, actions: np.ndarray) -> tuple[Any, np.ndarray]:
        """Observations, and whose episode has ended."""
        states, _, self._terminated, truncated, _ = self._envs.step(actions)
        return states, self._terminated | truncated

    def succeeded(self, index: int) -> bool:
        """Only success terminates."""
        return bool(self._terminated[index])


def measure(job: Job) -> Any:
    """Whatever the workload is."""
    make: Callable[..., Vector] = AsyncVector
    return measure_vector(make, job)


if __name__ == "__main__":
    answer(measure)
