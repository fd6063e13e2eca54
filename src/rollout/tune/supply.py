"""How long the policy takes by batch size, through the same call that the engine makes."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Sequence
from functools import partial
from statistics import median

import anyio

from rollout.engine.forward import Call, Forward, blame
from rollout.engine.thread import in_thread
from rollout.tune.curve import Curve
from rollout.tune.network import Supply
from rollout.tune.sample import Sampled

__all__ = ["measure_supply"]

LEAST, MOST = 3, 200  # forwards of each size
A_WHILE_S = 0.5  # for each size, unless the least number takes longer


async def measure_supply(sampled: Sampled, most: int, until_s: float) -> Supply:
    """Measure batches of 1, 2, and 4, … `most` until `until_s` (of `time.perf_counter`), or up to where memory ends.

    Raises `PolicyError` where the policy fails.
    """
    spec = sampled.spec
    limit, largest = spec.max_batch, min(most, spec.max_batch or most)
    seconds: dict[int, list[float]] = defaultdict(list)
    wall_s = cpu_s = 0.0
    size = 1
    while True:
        began = time.perf_counter()
        calls = await _at_once(sampled, size)
        took = time.perf_counter() - began
        for call in calls:
            wall_s += call.ended - call.began
            cpu_s += call.cpu_s / spec.calls  # a process's clock, which ran for the others too
            for part, part_s in call.forwards:
                seconds[part].append(part_s)
        fits = [call.fits for call in calls if call.fits is not None]
        limit = min(fits, default=limit)
        late = time.perf_counter() + 2 * took > until_s
        if (
            fits or size == largest or (late and size > 1)
        ):  # of one size, nothing tells what a larger one costs
            break
        size = min(2 * size, largest)
    curve = {size: median(each) for size, each in seconds.items() if limit is None or size <= limit}
    return Supply(seconds=Curve.of(curve), cores=cpu_s / max(wall_s, 1e-9), calls=spec.calls, most=limit)


async def _at_once(sampled: Sampled, size: int) -> Sequence[Call]:
    """The forwards of as many threads as the policy takes, with batches of `size` each."""
    calls: list[Call] = []

    async def one() -> None:
        calls.extend(await in_thread(partial(_forwards, sampled, size)))

    async with anyio.create_task_group() as threads:
        for _ in range(sampled.spec.calls):
            threads.start_soon(one)
    for call in calls:
        if call.error is not None:
            raise blame(sampled.requests(size, 0), call.error)
    return calls


def _forwards(sampled: Sampled, size: int) -> list[Call]:
    """Those of one thread, without the first; the last one alone where it did not go well."""
    forward, calls = Forward(sampled.policy.infer, copies=not sampled.spec.inline), []
    began = time.perf_counter()
    for number in range(MOST):
        calls.append(forward(sampled.requests(size, number)))
        if calls[-1].error is not None or calls[-1].fits is not None:
            return calls[-1:]
        if number == 0:
            began = calls[0].ended  # the first one prepares much: memory, compiled kernels
        elif number >= LEAST and calls[-1].ended > began + A_WHILE_S:
            break
    return calls[1:]
