"""A policy that is watched: what each of its decisions was shown."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from hashlib import blake2b
from typing import Any, TypeAlias

import msgspec
from msgspec import Struct

from rollout.policies.base import Policy, PolicySpec, Request, Session
from rollout.results.journal import Key
from rollout.types import EpisodeSpec, Observation, TaskInfo
from rollout.values import pack

__all__ = ["Seen", "Sights", "Witness"]

_encode = msgspec.msgpack.Encoder().encode


class Seen(Struct, frozen=True):
    """One decision: the steps executed before it, and a digest of every part of its observation."""

    step: int
    digests: Mapping[str, bytes]  # by observation key


Sights: TypeAlias = dict[Key, list[Seen]]
"""By episode, its decisions in order."""


class Witness:
    """Passes everything on to a policy, and keeps what it was shown: without that, "another action" does not tell
    whether the policy or the simulator was the first to differ."""

    def __init__(self, policy: Policy) -> None:
        self._policy = policy
        self.sights: Sights = {}

    @property
    def spec(self) -> PolicySpec:
        """The policy's own, which may become narrower at its first decision."""
        return self._policy.spec

    def open_session(self, episode: EpisodeSpec, task: TaskInfo) -> Session:
        """The policy's own."""
        return self._policy.open_session(episode, task)

    def infer(self, requests: Sequence[Request]) -> Sequence[Any]:
        """The policy's own."""
        for request in requests:
            self._look(request)  # before the policy can write into its observation
        return self._policy.infer(requests)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._policy, name)

    def _look(self, request: Request) -> None:
        key = request.episode.key
        if request.decision == 0:  # of a new attempt, where a worker died
            self.sights[key] = []
        self.sights[key].append(Seen(request.step, _digests(request.observation)))


def _digests(observation: Observation) -> dict[str, bytes]:
    return {key: blake2b(_encode(pack(value)), digest_size=16).digest() for key, value in observation.items()}
