"""Stable-Baselines3's `SubprocVecEnv`: pickles through pipes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from benchmarks.job import Job, Unavailable, answer
from benchmarks.vectorised import Vector, measure_vector


class Subproc:
    """With its default start method where threads may be about, "forkserver"."""

    resets_in_step_of_its_own = False

    def __init__(self, makers: Sequence[Callable[[], Any]], job: Job) -> None:
        from stable_baselines3.common.vec_env import SubprocVecEnv

        self._envs = SubprocVecEnv(list(makers), start_method="forkserver")
        self._infos: Sequence[dict[str, Any]] = ()

    def reset(self) -> Any:
        """Observations, stacked."""
        return self._envs.reset()

    def step(self, actions: np.ndarray) -> tuple[Any, np.ndarray]:
        """Observations, and whose episode has ended."""
        states, _, ended, self._infos = self._envs.step(actions)
        return states, ended

    def succeeded(self, index: int) -> bool:
        """Only success terminates."""
        return not self._infos[index].get("TimeLimit.truncated", False)


def measure(job: Job) -> Any:
    """Whatever the workload is."""
    make: Callable[..., Vector] = Subproc
    try:
        return measure_vector(make, job)
    except ModuleNotFoundError as exc:
        raise Unavailable(f"{exc}; run: pip install 'rollout-engine[bench]'") from exc


if __name__ == "__main__":
    answer(measure)
