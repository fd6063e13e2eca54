"""What a worker holds once its simulator is built and has stepped: its share of all pages (PSS), and its own (USS)."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np

from benchmarks.environments import NO_OP
from benchmarks.job import Job, Measured, Unavailable, answer

TARGETS = {
    "no-op": f"gym:benchmarks.environments:{NO_OP}",
    "metaworld": "metaworld:push-v3",
    "libero": "libero:spatial",
}
READS = {"metaworld": ("observation.environment_state",)}  # no pictures; of the others everything
NEEDS_GB = {"no-op": 0.1, "metaworld": 0.3, "libero": 1.6}  # of each worker
ENDLESS = 100_000


def of_rollout(job: Job) -> Measured:
    """Workers that each hold an episode of their own, half way through."""
    import anyio

    import rollout

    n = job.case["n"]

    class Policy:
        """Lets all episodes go on until each has stepped, then looks at the workers and ends the run."""

        spec = rollout.PolicySpec(inline=True, observation_keys=READS.get(job.case["family"]))
        engine: rollout.Engine
        measured: Measured | None = None
        stepped: set[int] = set()  # noqa: RUF012  # one policy a process

        def infer(self, requests: Sequence[Any]) -> Sequence[Any]:
            self.stepped.update(request.episode.episode for request in requests if request.step)
            if len(self.stepped) == n and self.measured is None:
                self.measured = _held(self.engine.worker_pids)
                self.engine.interrupt()
            low = [np.zeros((1, *request.task.action_space.shape), np.float32) for request in requests]
            return low

    async def main() -> Measured:
        policy = Policy()
        settings = {"tasks": (0,), "episodes": n, "horizon": ENDLESS}
        async with rollout.Engine(TARGETS[job.case["family"]], workers=n, **settings) as engine:
            policy.engine = engine
            await engine.evaluate(policy)
        assert policy.measured is not None
        return policy.measured

    return anyio.run(main)


def _made(family: str) -> Any:
    import gymnasium

    from benchmarks.metaworld_environment import MetaWorldEpisodes

    if family == "metaworld":
        return MetaWorldEpisodes("push-v3", [1000])
    return gymnasium.make(NO_OP, disable_env_checker=True)


def of_async_vector_env(job: Job) -> Measured:
    """Gymnasium's workers, after one step."""
    import gymnasium

    envs = gymnasium.vector.AsyncVectorEnv([partial(_made, job.case["family"])] * job.case["n"])
    return _stepped(envs, job.case["n"])


def of_subproc_vec_env(job: Job) -> Measured:
    """Stable-Baselines3's workers, after one step."""
    from stable_baselines3.common.vec_env import SubprocVecEnv

    envs = SubprocVecEnv([partial(_made, job.case["family"])] * job.case["n"], start_method="forkserver")
    return _stepped(envs, job.case["n"])


def _stepped(envs: Any, n: int) -> Measured:
    envs.reset()
    envs.step(np.zeros((n, 4), np.float32))
    measured = _held([process.pid for process in envs.processes])
    envs.close()
    return measured


def _held(pids: Sequence[int]) -> Measured:
    """MB: the mean over workers, and what else there is to say."""
    pss, uss = zip(*map(_memory_mb, pids), strict=True)
    extra = {"uss_mb": fmean(uss), "pss_each_mb": pss, "parent_pss_mb": _memory_mb(os.getpid())[0]}
    return Measured(fmean(pss), extra)


def _memory_mb(pid: int) -> tuple[float, float]:
    """PSS and USS of a process."""
    lines = (line.split() for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()[1:])
    held = {line[0].rstrip(":"): int(line[1]) * 1024 / 1e6 for line in lines}
    return held["Pss"], held["Private_Clean"] + held["Private_Dirty"]


WHO: dict[str, Callable[[Job], Measured]] = {
    "rollout": of_rollout,
    "AsyncVectorEnv": of_async_vector_env,
    "SubprocVecEnv": of_subproc_vec_env,
}


def measure(job: Job) -> Measured:
    """MB a worker."""
    from rollout.resources import available_memory

    n, needs_gb = job.case["n"], job.case["n"] * NEEDS_GB[job.case["family"]]
    if available_memory() < needs_gb * 1e9:
        free_gb = available_memory() / 1e9
        raise Unavailable(f"{n} workers need {needs_gb:.0f} GB, and {free_gb:.0f} GB are free")
    return WHO[job.case["who"]](job)


if __name__ == "__main__":
    answer(measure)
