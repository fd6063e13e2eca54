"""EnvPool 1.2's Meta-World: physics, tasks and rewards in C++, as many threads as cores.

The limit of what a simulator's state can give: no policy and no Python in a step, as the actions are drawn before. Its
episodes are not ours, as it draws its own goals.
"""

from __future__ import annotations

import os
import time
from typing import Any

import numpy as np

from benchmarks.job import Job, Measured, Unavailable, answer

NAMES = {"push-v3": "MetaWorld/Push-v3", "reach-v3": "MetaWorld/Reach-v3"}
WARM_UP_STEPS, DRAWN = 100, 512


def measure(job: Job) -> Measured:
    """Environment steps a second; a step in which an environment resets is none."""
    if job.workload != "metaworld":
        raise Unavailable("plays Meta-World's states alone")
    import envpool

    n, cores = job.case["n"], len(os.sched_getaffinity(0))
    envs = envpool.make_gymnasium(
        NAMES[job.case["task"]], num_envs=n, num_threads=cores, seed=job.case["seed"]
    )
    envs.reset()
    actions = np.random.default_rng(0).uniform(-1, 1, (DRAWN, n, 4)).astype(np.float32)
    for index in range(WARM_UP_STEPS):
        envs.step(actions[index])
    began, steps = time.perf_counter(), 0
    while (wall_s := time.perf_counter() - began) < job.seconds:
        steps += stepped(envs.step(actions[steps // n % DRAWN]))
    return Measured(steps / wall_s, {"wall_s": wall_s, "steps": steps, "threads": cores})


def stepped(told: tuple[Any, ...]) -> int:
    """How many environments made a step."""
    return int((told[4]["elapsed_step"] > 0).sum())


if __name__ == "__main__":
    answer(measure)
