"""Ours, end to end: one `rollout.run`, as a user calls it."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Sequence
from typing import Any

import msgspec
import numpy as np
import torch

import rollout
from benchmarks.evaluations import SEED, Evaluation, Recorded, clocked, record
from benchmarks.job import Job, Measured, Unavailable, answer
from benchmarks.small_policy import SmallPolicy
from rollout.results.reading import read_actions
from rollout.values import unpack

STATE = "observation.state"
PICTURES = {
    "libero": ("observation.images.image", "observation.images.image2"),
    "metaworld": ("observation.images.corner2",),
}


class Small(torch.nn.Module):
    """The small policy as a module of a user's."""

    def __init__(self, evaluation: Evaluation) -> None:
        super().__init__()
        self.small = SmallPolicy(**evaluation.policy_shape)
        self.pictures = PICTURES[evaluation.family]
        self.cpu_s = 0.0  # of its forwards
        self.spec = rollout.PolicySpec(
            observation_keys=(*self.pictures, STATE),
            chunk_size=evaluation.chunk,
            n_action_steps=evaluation.chunk,
        )

    def forward(self, batch: dict[str, Any]) -> torch.Tensor:
        """(B, chunk, A)."""
        began = time.thread_time()
        actions: torch.Tensor = self.small([batch[key] for key in self.pictures], batch[STATE])
        self.cpu_s += time.thread_time() - began
        return actions


class Replayed:
    """Looks at the pictures as the small policy does, and then acts as the expert did."""

    def __init__(self, evaluation: Evaluation, recorded: Recorded) -> None:
        self._small, self._recorded, self._chunk = Small(evaluation), recorded, evaluation.chunk
        self.spec = self._small.spec

    @property
    def cpu_s(self) -> float:
        """Of forwards."""
        return self._small.cpu_s

    @torch.inference_mode()
    def infer(self, requests: Sequence[Any]) -> list[np.ndarray]:
        """A chunk a request."""
        return [self._act(request) for request in requests]

    def _act(self, request: Any) -> np.ndarray:
        seen = {
            key: torch.from_numpy(request.observation[key])[None] for key in self.spec.observation_keys or ()
        }
        for key in self._small.pictures:
            seen[key] = seen[key].permute(0, 3, 1, 2).float().div_(255)
        self._small(seen)
        spec = request.episode
        return self._recorded.chunk(spec.task_id, spec.episode, request.step, self._chunk)


def measure(job: Job) -> Measured:
    """Seconds of the evaluation."""
    torch.set_num_threads(1)
    evaluation = Evaluation.of(job.case)
    policy: Any = Small(evaluation)
    if evaluation.policy == "recorded":
        policy = Replayed(evaluation, recorded(evaluation))
    with tempfile.TemporaryDirectory() as out:
        with clocked() as clock:
            report = run(evaluation, policy, out=out, workers=job.case.get("workers", "auto"))
        told = list(records(report, out))
    timing = msgspec.to_builtins(report.summary.timing, str_keys=True)
    extra = {
        **clock.__dict__,
        "policy_cpu_s": policy.cpu_s,
        "spent": spent(report),
        "timing": timing,
        "records": told,
    }
    return Measured(clock.wall_s, extra)


def run(evaluation: Evaluation, policy: Any, **settings: Any) -> rollout.Report:
    """The evaluation. Raises `Unavailable` where an episode failed."""
    if evaluation.family == "libero":
        settings["tasks"], targets = tuple(evaluation.tasks), ["libero:spatial"]
    else:
        targets = [f"metaworld:{task}" for task in evaluation.tasks]
    size = {"height": str(evaluation.size), "width": str(evaluation.size)}
    report = rollout.run(
        policy,
        targets,
        episodes=evaluation.episodes,
        seed=SEED,
        horizon=evaluation.horizon,
        options=size,
        render="cpu",
        **settings,
    )
    if report.summary.overall.n_error:
        failed = next(episode for episode in report.episodes if episode.error)
        raise Unavailable(f"an episode failed: {failed.error}")
    return report


def spent(report: rollout.Report) -> dict[str, float]:
    """Seconds of all episodes, by cause."""
    total: dict[str, float] = {"builds": sum(bool(episode.built) for episode in report.episodes)}
    for episode in report.episodes:
        for cause, seconds in msgspec.to_builtins(episode.time_s).items():
            total[cause] = total.get(cause, 0.0) + (seconds or 0.0)
    return total


def recorded(evaluation: Evaluation) -> Recorded:
    """The expert's actions, from a run of ours that looks at no pictures, once for all."""
    try:
        return Recorded.find(evaluation)
    except Unavailable:
        with tempfile.TemporaryDirectory() as out:
            run(evaluation, "expert", out=out)
            actions = read_actions(out).values()
            found = Recorded({(each.key[1], each.key[2]): unpack(each.actions) for each in actions})
        found.save(evaluation)
        return found


def records(report: rollout.Report, out: str) -> Any:
    """The record of every episode; tasks are counted as they were given."""
    actions = read_actions(out)
    places: dict[Any, int] = {}
    for episode in report.episodes:
        task = places.setdefault((episode.suite, episode.task_id), len(places))
        executed = unpack(actions[episode.key].actions)
        yield record(task, episode.episode, executed, bool(episode.success), episode.sum_reward)


if __name__ == "__main__":
    answer(measure)
