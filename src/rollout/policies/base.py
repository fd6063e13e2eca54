"""What a policy is, and what it is asked."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager
from hashlib import blake2b
from typing import Any, ClassVar, Protocol

from msgspec import Struct

from rollout.config import EvalConfig
from rollout.types import EpisodeSpec, Observation, ObservationRequest, TaskInfo

__all__ = ["Opener", "Policy", "PolicySpec", "PolicySpent", "Request", "Session", "noise_seed"]

Session = Any
"""Everything that a policy remembers of one episode; None for stateless policies."""


class PolicySpec(Struct, frozen=True, kw_only=True):
    """What a policy reads and returns."""

    observation_keys: tuple[str, ...] | None = None  # None: everything
    n_obs_steps: int = 1  # observations stacked along a new leading axis where > 1
    chunk_size: int = 1  # actions predicted at once
    n_action_steps: int | None = 1  # how many of them are executed; None: all that are returned
    temporal_ensemble: float | None = (
        None  # ask at every step, and average what all chunks say of it (see `Ensemble`)
    )
    noise_shape: tuple[int, ...] | None = (
        None  # a module's: standard normal `noise` (B, *noise_shape), each decision's own
    )
    cuda_graphs: bool = (
        False  # a module's: its forward is the same kernels each time, and reads tensors alone
    )
    inline: bool = False  # `infer` returns within microseconds: call it on the event loop, not in a thread
    calls: int = (
        1  # of `infer` that may run at once, each in a thread of its own; for policies that wait for others
    )
    max_batch: int | None = None  # most requests that one call takes; None: any number
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


class PolicySpent(Struct):
    """Where `infer` spends its time, in seconds since the policy was made. Policies that know it keep one up to date as
    their attribute `spent`."""

    collate: float = 0.0  # observations into one batch, in the host's memory
    copy: float = 0.0  # that batch to the device
    forward: float = 0.0  # until the actions are back in the host's memory

    def copy_of(self) -> PolicySpent:
        """As it is now."""
        return PolicySpent(self.collate, self.copy, self.forward)

    def since(self, before: PolicySpent) -> PolicySpent:
        """What was spent after `before`."""
        return PolicySpent(
            self.collate - before.collate, self.copy - before.copy, self.forward - before.forward
        )


class Policy(Protocol):
    """A policy as the engine sees it. `infer` runs in a thread of its own; the rest on the event loop.

    Optional attributes: `spent` (`PolicySpent`), and `versions`, a dict of what decides its actions beside the
    settings (packages, a checkpoint's digest), for the record.
    """

    spec: PolicySpec

    def open_session(self, episode: EpisodeSpec, task: TaskInfo) -> Session:
        """Everything that the policy remembers of one episode."""
        ...

    def infer(self, requests: Sequence[Request]) -> Sequence[Any]:
        """One action chunk a request, in order: arrays (chunk_size, action_dim), or (chunk_size,) for `Discrete`;
        for nested action spaces, sequences of `chunk_size` nested values."""
        ...


class Opener(Protocol):
    """What is registered (entry point group `rollout.policies`) to serve policy specs of the form `name:locator`."""

    locator: ClassVar[str]  # what follows the colon, for messages, e.g. "PATH_OR_REPO"

    def opened(self, locator: str, config: EvalConfig, /, **arguments: Any) -> AbstractContextManager[Policy]:
        """The policy for one evaluation, and everything of it released afterwards; `arguments` are `--policy-arg`.

        Raises `UsageError` with one line where it cannot be had. A class method, or a static one, of a class.
        """
        ...
