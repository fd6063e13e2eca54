"""What watching costs: evaluations with the live view on a terminal, and without, in turn, on one warm engine."""

from __future__ import annotations

import os
import pty
import statistics
import subprocess
import sys
import termios
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import anyio

import rollout
from benchmarks.contenders.rollout import Constant, evaluated
from benchmarks.environments import EPISODE_STEPS, NO_OP
from benchmarks.job import Job, Measured, answer
from rollout.api import loop_options
from rollout.config import DisplayName

WORKERS = 16
# The target, its horizon, and the policy.
WORK: dict[str, tuple[str, int, Any]] = {
    "no-op": (f"gym:benchmarks.environments:{NO_OP}", EPISODE_STEPS, Constant(inline=True)),
    "metaworld": ("metaworld:push-v3", 500, "expert"),
}


async def in_turn(job: Job) -> Measured:
    """The median of the pairs' ratios, steps a second with the live view to those without."""
    target, horizon, policy = WORK[job.case["work"]]
    async with rollout.Engine(target, workers=WORKERS, horizon=horizon) as engine:

        async def rate(display: DisplayName, episodes: int) -> float:
            return (await evaluated(engine, policy, episodes, display)).value

        await rate("live", WORKERS)
        warm = await evaluated(engine, policy, 2 * WORKERS)
        episodes = max(WORKERS, round(2 * WORKERS * job.case["seconds"] / warm.extra["wall_s"]))
        rates: dict[DisplayName, list[float]] = {"live": [], "none": []}
        for number in range(job.case["pairs"]):
            for display in ("live", "none") if number % 2 else ("none", "live"):
                rates[display].append(await rate(display, episodes))
    ratios = [live / none for live, none in zip(rates["live"], rates["none"], strict=True)]
    return Measured(statistics.median(ratios), {"steps_per_s": rates, "ratios": ratios})


@contextmanager
def terminal() -> Iterator[None]:
    """Standard output is a terminal of 120 × 40 that somebody reads, in a process of its own."""
    ours, theirs = pty.openpty()
    termios.tcsetwinsize(theirs, (40, 120))
    os.environ["TERM"] = "xterm-256color"
    reader = subprocess.Popen(["cat"], stdin=ours, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    os.close(ours)
    before, sys.stdout = sys.stdout, os.fdopen(theirs, "w")
    try:
        yield
    finally:
        sys.stdout.close()
        sys.stdout = before
        reader.wait(10)


def measure(job: Job) -> Measured:
    """With a terminal for both."""
    with terminal():
        return anyio.run(in_turn, job, backend_options=loop_options())


if __name__ == "__main__":
    answer(measure)
