"""Ours: an evaluation, its engine warm."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

import anyio
import numpy as np

import rollout
from benchmarks.batching_work import MOST
from benchmarks.environments import EPISODE_STEPS, NO_OP, SLEEPING
from benchmarks.job import Job, Measured, answer
from benchmarks.scheduling import SEED, Accelerator, Work
from rollout.api import loop_options
from rollout.config import DisplayName

WARM_UP_EPISODES = 2  # of each worker


class Constant:
    """Reads every observation and returns at once."""

    def __init__(self, inline: bool) -> None:
        self.spec = rollout.PolicySpec(inline=inline)
        self._chunk = np.zeros((1, 4), np.float32)

    def infer(self, requests: Sequence[Any]) -> Sequence[Any]:
        """One action a request."""
        return [self._chunk] * len(requests)


class Simulated:
    """Sleeps as an accelerator works, in the policy's thread."""

    spec = rollout.PolicySpec()

    def __init__(self, accelerator: Accelerator) -> None:
        self._accelerator, self._chunk = accelerator, np.zeros((1, 4), np.float32)

    def infer(self, requests: Sequence[Any]) -> Sequence[Any]:
        """One action a request."""
        self._accelerator.forward(len(requests))
        return [self._chunk] * len(requests)


async def transport(job: Job) -> Measured:
    """Environment steps a second of no-op episodes: as many as fill the time."""
    workers, policy = job.case["n"], Constant(job.case["inline"])
    options = {"images": "true"} if job.case["images"] else {}
    target = f"gym:benchmarks.environments:{NO_OP}"
    async with rollout.Engine(target, workers=workers, options=options, horizon=EPISODE_STEPS) as engine:
        await evaluated(engine, policy, workers)
        rate = (await evaluated(engine, policy, workers)).value
        each = max(1, round(rate * job.seconds / EPISODE_STEPS / workers))
        return await evaluated(engine, policy, each * workers)


async def metaworld(job: Job) -> Measured:
    """Environment steps a second of the scripted expert's episodes."""
    workers, each = job.case["n"], job.case["episodes_each"]
    target = f"metaworld:{job.case['task']}"
    async with rollout.Engine(target, workers=workers, seed=job.case["seed"]) as engine:
        await evaluated(engine, "expert", WARM_UP_EPISODES * workers)
        return await evaluated(engine, "expert", each * workers)


async def scheduling(job: Job) -> Measured:
    """The share of the bound, with sleeping simulators and a sleeping policy."""
    work = Work.of(job.case)
    target, options = f"gym:benchmarks.environments:{SLEEPING}", {"speed": str(work.speed)}
    policy = Simulated(work.accelerator)
    async with rollout.Engine(
        target, workers=work.workers, options=options, seed=SEED, horizon=MOST + 1
    ) as engine:
        await evaluated(engine, policy, work.workers)
        measured = await evaluated(engine, policy, work.episodes)
    wall_s = measured.extra["wall_s"]
    return Measured(work.share(wall_s), {**measured.extra, "bound_s": work.bound_s})


async def evaluated(
    engine: rollout.Engine, policy: Any, episodes: int, display: DisplayName = "none"
) -> Measured:
    """Environment steps a second, by the clock of whoever waits for the report."""
    began = time.perf_counter()
    report = await engine.evaluate(policy, episodes=episodes, display=display)
    wall_s = time.perf_counter() - began
    overall = report.summary.overall
    assert overall.n_error == 0, report.episodes[0].error
    steps = sum(episode.steps for episode in report.episodes)
    extra = {"wall_s": wall_s, "steps": steps, "episodes": episodes, "successes": overall.n_success}
    return Measured(steps / wall_s, extra)


WORKLOADS = {"transport": transport, "metaworld": metaworld, "scheduling": scheduling}


def measure(job: Job) -> Measured:
    """Whatever the workload is."""
    return anyio.run(WORKLOADS[job.workload], job, backend_options=loop_options())


if __name__ == "__main__":
    answer(measure)
