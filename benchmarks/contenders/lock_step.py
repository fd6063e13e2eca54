"""A vectorised evaluation: every decision waits for the slowest environment, with one forward of all of them."""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from typing import Any

import gymnasium
import numpy as np
from gymnasium.vector import AsyncVectorEnv, AutoresetMode

from benchmarks.environments import SLEEPING
from benchmarks.job import Job, Measured, answer
from benchmarks.scheduling import Accelerator, Work


def _make(speed: float, seeds: tuple[int, ...] = ()) -> Any:
    return gymnasium.make(SLEEPING, speed=speed, seeds=seeds, disable_env_checker=True)


def in_groups(work: Work, accelerator: Accelerator) -> float:
    """N episodes until the longest has ended, then the next N: as `lerobot-eval` does it. Seconds."""
    n, actions = work.workers, np.zeros((work.workers, 4), np.float32)
    make = partial(_make, work.speed)
    envs = AsyncVectorEnv([make] * n, autoreset_mode=AutoresetMode.DISABLED)
    began = time.perf_counter()
    for first in range(0, work.episodes, n):
        group = work.seeds[first : first + n]
        envs.reset(seed=[*group, *[group[0]] * (n - len(group))])
        ended = np.arange(n) >= len(group)
        while not ended.all():
            accelerator.forward(n)
            _, _, terminated, _, _ = envs.step(actions)
            ended |= terminated
    wall_s = time.perf_counter() - began
    envs.close()
    return wall_s


def refilled(work: Work, accelerator: Accelerator) -> float:
    """Each environment begins its next episode at once, while the others step. Seconds until the last one's end."""
    n, actions = work.workers, np.zeros((work.workers, 4), np.float32)
    seeds = [tuple(work.seeds[index::n]) for index in range(n)]
    envs = AsyncVectorEnv([partial(_make, work.speed, each) for each in seeds])
    left = np.array([len(each) for each in seeds])
    began = time.perf_counter()
    envs.reset()
    while left.any():
        accelerator.forward(n)
        _, _, terminated, _, _ = envs.step(actions)
        left -= terminated
    wall_s = time.perf_counter() - began
    envs.close()
    return wall_s


HOW: dict[bool, Callable[[Work, Accelerator], float]] = {False: in_groups, True: refilled}


def measure(job: Job) -> Measured:
    """The share of the bound."""
    work = Work.of(job.case)
    wall_s = HOW[job.case["refilled"]](work, work.accelerator)
    return Measured(work.share(wall_s), {"wall_s": wall_s, "bound_s": work.bound_s})


if __name__ == "__main__":
    answer(measure)
