"""What a policy is, and what it is asked."""

from __future__ import annotations

from collections.abc import Sequence
from hashlib import blake2b
from typing import Any, Protocol

from msgspec import Struct

from rollout.types import EpisodeSpec, Observation, ObservationRequest, TaskInfo

__all__ = ["Policy", "PolicySpec", "Request", "Session", "noise_seed"]

Session = Any
"""Everything that a policy remembers of one episode; None for stateless policies."""


class PolicySpec(Struct, frozen=True, kw_only=True):
    """What a policy reads and returns."""

    observation_keys: tuple[str, ...] | None = None  # None: everything
    n_obs_steps: int = 1  # observations stacked along a new leading axis where > 1
    chunk_size: int = 1  # actions predicted at once
    n_action_steps: int | None = 1  # how many of them are executed; None: all that are returned
    inline: bool = False  # `infer` returns within microseconds: call it on the event loop, not in a thread
    families: tuple[str, ...] | None = None  # simulator families that it can act in; None: any

    @property
    def observation_request(self) -> ObservationRequest:
        """The part that a simulator must know."""
        return ObservationRequest(keys=self.observation_keys, n_obs_steps=self.n_obs_steps)


class Request:
    """One decision that an episode waits for."""

    __slots__ = ("decision", "episode", "observation", "session", "step", "task")

    def __init__(
        self,
        episode: EpisodeSpec,
        task: TaskInfo,
        decision: int,
        step: int,
        session: Session,
        observation: Observation,
    ) -> None:
        self.episode = episode
        self.task = task
        self.decision = decision  # 0, 1, 2, … within the episode
        self.step = step  # steps executed so far
        self.session = session
        self.observation = observation  # only the keys asked for, and "task"

    @property
    def noise_seed(self) -> int:
        """The seed of this decision's randomness: the same whatever shares the batch (see `noise_seed`)."""
        return noise_seed(self.episode, self.decision)


def noise_seed(episode: EpisodeSpec, decision: int) -> int:
    """A 63-bit seed that depends on seed, suite, task, episode and decision alone (not on Python's hash seed)."""
    name = f"{episode.seed}\0{episode.suite}\0{episode.task}\0{episode.episode}\0{decision}"
    return int.from_bytes(blake2b(name.encode(), digest_size=8).digest(), "little") >> 1


class Policy(Protocol):
    """A policy as the engine sees it. `infer` runs in one dedicated thread; the rest on the event loop."""

    spec: PolicySpec

    def open_session(self, episode: EpisodeSpec, task: TaskInfo) -> Session:
        """Everything that the policy remembers of one episode."""
        ...

    def infer(self, requests: Sequence[Request]) -> Sequence[Any]:
        """One action chunk a request, in order: arrays (chunk_size, action_dim), or (chunk_size,) for `Discrete`;
        for nested action spaces, sequences of `chunk_size` nested values."""
        ...
