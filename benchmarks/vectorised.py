"""The loops that vectorised environments are evaluated with: for both peers the same, but for when they reset.

`Vector` hides what differs. What a loop counts are steps of episodes alone: no resets, no idling.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Protocol

import numpy as np

from benchmarks.environments import NO_OP
from benchmarks.job import Job, Measured
from benchmarks.metaworld_environment import Experts, MetaWorldEpisodes

__all__ = ["Vector", "measure_vector"]

WARM_UP_STEPS = 200
WARM_UP_STEPS_OF_AN_EPISODE = 5  # too few to end it


class Vector(Protocol):
    """N environments that step together."""

    resets_in_step_of_its_own: (
        bool  # after an episode's last step: that step is no step, its action is ignored
    )

    def reset(self) -> Any:
        """Observations, stacked."""

    def step(self, actions: np.ndarray) -> tuple[Any, np.ndarray]:
        """Observations, and whose episode has ended: bool (n,)."""

    def succeeded(self, index: int) -> bool:
        """Whether the episode that has just ended in environment `index` did so by success."""


Make = Callable[[Sequence[Callable[[], Any]], Job], Vector]


def measure_vector(make: Make, job: Job) -> Measured:
    """Whatever the workload is."""
    return {"transport": _transport, "metaworld": _metaworld}[job.workload](make, job)


def _no_op(images: bool) -> Any:
    import gymnasium

    return gymnasium.make(NO_OP, images=images, disable_env_checker=True)


def _transport(make: Make, job: Job) -> Measured:
    """Environment steps a second of a bare loop whose actions are always the same."""
    n = job.case["n"]
    vector = make([partial(_no_op, job.case["images"])] * n, job)
    vector.reset()
    actions = np.zeros((n, 4), np.float32)
    for _ in range(WARM_UP_STEPS):
        vector.step(actions)
    began, calls, resets = time.perf_counter(), 0, 0
    while time.perf_counter() - began < job.seconds:
        _, ended = vector.step(actions)
        calls += 1
        resets += int(ended.sum()) if vector.resets_in_step_of_its_own else 0
    wall_s = time.perf_counter() - began
    steps = calls * n - resets
    return Measured(steps / wall_s, {"wall_s": wall_s, "steps": steps})


def _metaworld(make: Make, job: Job) -> Measured:
    """Environment steps a second until the last of a fixed list of episodes has ended, its resets included."""
    n, each, task = job.case["n"], job.case["episodes_each"], job.case["task"]
    seeds = range(job.case["seed"], job.case["seed"] + n * each)
    warm_up = seeds[:1]
    makers = [partial(MetaWorldEpisodes, task, [*warm_up, *seeds[index::n]]) for index in range(n)]
    vector, experts = make(makers, job), Experts(task, n)
    _begin_an_episode(vector, experts, n)
    began = time.perf_counter()
    steps, successes = play(vector, experts, n, each)
    wall_s = time.perf_counter() - began
    extra = {"wall_s": wall_s, "steps": steps, "episodes": n * each, "successes": successes}
    return Measured(steps / wall_s, extra)


def _begin_an_episode(vector: Vector, experts: Experts, n: int) -> None:
    """Pays what a first reset and first steps cost, as our warm-up episodes do; the next reset drops this episode."""
    states = vector.reset()
    for _ in range(WARM_UP_STEPS_OF_AN_EPISODE):
        actions = np.stack([experts.act(index, states[index]) for index in range(n)])
        states, ended = vector.step(actions)
        assert not ended.any()
    for index in range(n):
        experts.begin(index)


def play(vector: Vector, experts: Experts, n: int, each: int) -> tuple[int, int]:
    """Steps and successes of `each` episodes in each of `n` environments."""
    states = vector.reset()
    left, resetting, actions = np.full(n, each), np.zeros(n, bool), np.zeros((n, 4), np.float32)
    steps = successes = 0
    while left.any():
        stepping = (left > 0) & ~resetting
        for index in map(int, np.flatnonzero(stepping)):
            actions[index] = experts.act(index, states[index])
        states, ended = vector.step(actions)
        ended = ended & stepping
        steps += int(stepping.sum())
        left -= ended
        for index in map(int, np.flatnonzero(ended)):
            successes += vector.succeeded(index)
            experts.begin(index)
        if vector.resets_in_step_of_its_own:
            resetting = ended
    return steps, successes
