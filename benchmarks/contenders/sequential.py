"""A plain loop: one environment in this process, episode after episode."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from benchmarks.job import Job, answer
from benchmarks.vectorised import Vector, measure_vector


class Alone:
    """One environment where the others have many."""

    resets_in_step_of_its_own = False

    def __init__(self, makers: Sequence[Callable[[], Any]], job: Job) -> None:
        [make] = makers
        self._env = make()
        self._terminated = False

    def reset(self) -> Any:
        """Its observation, stacked."""
        return [self._env.reset()[0]]

    def step(self, actions: np.ndarray) -> tuple[Any, np.ndarray]:
        """Its observation, the next episode's where this one has ended, and whether it has."""
        state, _, self._terminated, truncated, _ = self._env.step(actions[0])
        ended = self._terminated or truncated
        return [self._env.reset()[0] if ended else state], np.array([ended])

    def succeeded(self, index: int) -> bool:
        """Only success terminates."""
        return self._terminated


def measure(job: Job) -> Any:
    """All episodes of the n environments in one."""
    case = {**job.case, "n": 1, "episodes_each": job.case["n"] * job.case["episodes_each"]}
    make: Callable[..., Vector] = Alone
    return measure_vector(make, replace(job, case=case))


if __name__ == "__main__":
    answer(measure)
