"""What the policy saw and did in the pieces that it played itself: real observations, and actions of its own."""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Sequence
from copy import deepcopy
from typing import Any

from msgspec import Struct

from rollout.engine.scheduler import TaskKey
from rollout.policies.base import Policy, PolicySpec, Request, Session
from rollout.types import EpisodeSpec, Observation, TaskInfo

__all__ = ["Instant", "Sample", "Sampled"]

KEPT = 16  # of observations, and of each task's chunks: a batch shows them again and again


class Sample(Struct, frozen=True):
    """One decision's observation."""

    episode: EpisodeSpec
    task: TaskInfo
    observation: Observation


class Sampled:
    """Passes everything on to a policy, and keeps some of it."""

    def __init__(self, policy: Policy) -> None:
        self.policy = policy
        self.samples: deque[Sample] = deque(maxlen=KEPT)
        self.chunks: dict[TaskKey, deque[Any]] = defaultdict(lambda: deque(maxlen=KEPT))

    @property
    def spec(self) -> PolicySpec:
        """The policy's own, which may become narrower at its first decision."""
        return self.policy.spec

    def open_session(self, episode: EpisodeSpec, task: TaskInfo) -> Session:
        """The policy's own."""
        return self.policy.open_session(episode, task)

    def infer(self, requests: Sequence[Request]) -> Sequence[Any]:
        """The policy's own."""
        if len(self.samples) < KEPT or requests[0].decision % KEPT == 0:
            request = requests[0]  # before the policy can write into its observation
            self.samples.append(Sample(request.episode, request.task, deepcopy(request.observation)))
        chunks = self.policy.infer(requests)
        for request, chunk in zip(requests, chunks, strict=False):
            self.chunks[request.episode.task_key].append(deepcopy(chunk))
        return chunks

    def __getattr__(self, name: str) -> Any:
        return getattr(self.policy, name)

    def of(self, policy: Policy) -> Sampled:
        """The same samples for another policy."""
        other = Sampled(policy)
        other.samples, other.chunks = self.samples, self.chunks
        return other

    def requests(self, count: int, number: int) -> list[Request]:
        """So many decisions that were seen, each in a session of its own, as their episodes' decision `number`."""
        samples = list(self.samples)
        return [self._request(samples[index % len(samples)], number) for index in range(count)]

    def _request(self, sample: Sample, number: int) -> Request:
        session = self.policy.open_session(sample.episode, sample.task)
        wants = self.spec.observation_request.wants
        kept = {key: value for key, value in sample.observation.items() if key == "task" or wants(key)}
        return Request(sample.episode, sample.task, number, number, session, kept)


class Instant:
    """Asks for what the policy asks for, and answers at once, with chunks that it gave before."""

    def __init__(self, sampled: Sampled) -> None:
        self.spec = sampled.spec
        self._chunks = {key: tuple(chunks) for key, chunks in sampled.chunks.items()}

    def open_session(self, episode: EpisodeSpec, task: TaskInfo) -> Session:
        """Its task's chunks."""
        return self._chunks[episode.task_key]

    def infer(self, requests: Sequence[Request]) -> Sequence[Any]:
        """One of them after the other."""
        return [request.session[request.decision % len(request.session)] for request in requests]
