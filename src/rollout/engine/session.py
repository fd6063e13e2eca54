"""What the engine remembers of one episode: plain bookkeeping, no process and no loop.

The policy's own state is `Request.session`; this is the rest: observation history, the checks that a chunk is one, the
executed actions and rewards, and the record that they end in.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from functools import cached_property
from hashlib import blake2b
from math import isfinite
from typing import Any

import msgspec
import numpy as np

from rollout.errors import PolicyError
from rollout.policies.base import Request, Session
from rollout.sim.protocol import RunDone, WireObservation
from rollout.types import EpisodeFailure, EpisodeResult, EpisodeSpec, Observation, Outcome, Spent, TaskInfo
from rollout.values import Array, Items, Value, pack, pack_array, unpack, unpack_array

__all__ = ["EpisodeSession", "episode_digest", "failed"]

_encode = msgspec.msgpack.Encoder().encode


class EpisodeSession:
    """One attempt at an episode."""

    def __init__(
        self,
        spec: EpisodeSpec,
        task: TaskInfo,
        *,
        n_obs_steps: int,
        n_action_steps: int | None,
        session: Session,
    ) -> None:
        self.spec = spec
        self.steps = 0
        self.decisions = 0
        self.ended = False
        self._task, self._session = task, session
        self._history: deque[Observation] = deque(maxlen=n_obs_steps)
        self._n_action_steps = n_action_steps
        space = task.action_space
        self._shape: tuple[int, ...] | None = getattr(space, "shape", None)  # None: a nested action space
        self._dtype = np.dtype(getattr(space, "dtype", "f4"))
        self._ndim = 1 + len(self._shape or ())
        self._sent: np.ndarray | list[Any] = []
        self._actions: list[np.ndarray] = []
        self._nested_actions: list[Value] = []
        self._rewards: list[bytes] = []
        self._last: RunDone | None = None

    def observe(self, observations: Sequence[WireObservation]) -> None:
        """Take over what a reset or a chunk let the policy see, oldest first."""
        for wire in observations:
            observation: Observation = {"task": self._task.instruction}
            for key, value in wire.items():
                observation[key] = unpack_array(value) if isinstance(value, Array) else unpack(value)
            self._history.append(observation)

    def request(self) -> Request:
        """The next decision's request."""
        observation = self._history[-1] if self._history.maxlen == 1 else _stacked(self._history)
        request = Request(self.spec, self._task, self.decisions, self.steps, self._session, observation)
        self.decisions += 1
        return request

    def chunk(self, actions: Any) -> Array | Items:
        """Check what the policy returned and cut it to what is executed. Raises `PolicyError` naming the episode."""
        if self._shape is None:
            return self._nested_chunk(actions)
        try:
            array = np.asarray(actions)
            if array.ndim != self._ndim or array.shape[1:] != self._shape or not len(array):
                array = _as_chunk(array, self._shape)
            if array.dtype is not self._dtype:
                _check_cast(array, self._dtype)
            if array.dtype.kind == "f" and not np.isfinite(array).all():
                raise ValueError("an action that is not finite")
            # A copy: the policy may reuse its buffer, and the record keeps what was executed.
            sent = self._sent = np.array(array[: self._n_action_steps], self._dtype, order="C")
        except (TypeError, ValueError) as exc:
            raise self._blame(exc) from exc
        return pack_array(sent)

    def executed(self, done: RunDone) -> int:
        """Take over what a chunk did, and return how many steps that were."""
        count = len(done.rewards) // 8
        self.steps += count
        self._rewards.append(done.rewards)
        if isinstance(self._sent, np.ndarray):
            self._actions.append(self._sent[:count])
        else:
            self._nested_actions += self._sent[:count]
        self._last = done
        self.ended = done.terminated or done.truncated
        if not self.ended:
            self.observe(done.observations)
        return count

    @cached_property
    def actions(self) -> Value:
        """All executed actions of an ended episode, leading axis: steps."""
        if self._shape is None:
            return Items(tuple(self._nested_actions))
        empty = np.zeros((0, *self._shape), self._dtype)
        return pack_array(np.concatenate(self._actions) if self._actions else empty)

    def result(self, *, attempts: int, spent: Spent, built: bool, video: str | None) -> EpisodeResult:
        """The record of an episode that was measured to its end."""
        last = self._last
        assert last is not None
        assert self.ended
        rewards = np.frombuffer(b"".join(self._rewards), np.float64)
        total = float(rewards.sum())
        finite = isfinite(total)  # huge rewards may add up to infinity
        return EpisodeResult(
            **_identity(self.spec),
            outcome=_outcome(last.success),
            success=last.success,
            steps=self.steps,
            sum_reward=total if finite else None,
            max_reward=float(rewards.max()) if finite else None,
            nonfinite_reward=not finite,
            terminated=last.terminated,
            truncated=last.truncated,
            attempts=attempts,
            digest=episode_digest(
                self.actions, rewards, self.steps, last.terminated, last.truncated, last.success
            ),
            time_s=spent,
            video=video,
            built=built,
        )

    def _nested_chunk(self, actions: Any) -> Items:
        try:
            packed = tuple(pack(action) for action in actions)[: self._n_action_steps]
            if not packed:
                raise ValueError("an empty chunk")
        except (TypeError, ValueError) as exc:
            raise self._blame(exc) from exc
        self._sent = list(packed)
        return Items(packed)

    def _blame(self, exc: Exception) -> PolicyError:
        where = f"{self.spec.suite} {self.spec.task} episode {self.spec.episode}, step {self.steps}"
        return PolicyError(f"the policy returned {exc} (in {where})")


def episode_digest(
    actions: Value, rewards: np.ndarray, steps: int, terminated: bool, truncated: bool, success: bool | None
) -> str:
    """128 bits over everything that an episode did, in hexadecimal.

    `actions` are the packed executed ones (`pack_array`, or `Items` where the action space is nested), leading
    axis: steps; `rewards` float64 (steps,).
    """
    ending = (steps, terminated, truncated, success)
    return blake2b(_encode((actions, pack_array(rewards), ending)), digest_size=16).hexdigest()


def failed(spec: EpisodeSpec, error: EpisodeFailure, *, attempts: int) -> EpisodeResult:
    """The record of an episode that could not be measured; it counts as an error, never as a failure."""
    return EpisodeResult(
        **_identity(spec),
        outcome=Outcome.ERROR,
        success=None,
        steps=0,
        sum_reward=None,
        max_reward=None,
        terminated=False,
        truncated=False,
        attempts=attempts,
        error=error,
        digest=None,
    )


def _as_chunk(array: np.ndarray, shape: tuple[int, ...]) -> np.ndarray:
    """A single action, or (chunk_size, 1) for a `Discrete` space, as (chunk_size, *shape). Raises `ValueError`."""
    if array.shape == shape:
        return array[np.newaxis]
    if shape == () and array.ndim == 2 and array.shape[1] == 1 and len(array):
        return array[:, 0]
    raise ValueError(f"shape {array.shape} instead of (chunk_size, {', '.join(map(str, shape))})")


def _check_cast(array: np.ndarray, dtype: np.dtype) -> None:
    """Raise `ValueError` where casting `array` to the action space's `dtype` would lose its meaning."""
    if dtype.kind in "iu" and array.dtype.kind == "f" and (array != np.rint(array)).any():
        raise ValueError(f"{array.dtype} actions that are not whole numbers, for a space of {dtype}")


def _identity(spec: EpisodeSpec) -> dict[str, Any]:
    return {
        "suite": spec.suite,
        "task": spec.task,
        "task_id": spec.task_id,
        "episode": spec.episode,
        "seed": spec.seed,
        "init_state": spec.init_state,
    }


def _outcome(success: bool | None) -> Outcome:
    if success is None:
        return Outcome.UNKNOWN
    return Outcome.SUCCESS if success else Outcome.FAILURE


def _stacked(history: deque[Observation]) -> Observation:
    """The last `n_obs_steps` observations along a new leading axis; an episode's first one fills what is missing."""
    missing = (history.maxlen or 1) - len(history)
    frames = [history[0]] * missing + list(history)
    newest = frames[-1]
    return {
        key: np.stack([frame[key] for frame in frames])
        if isinstance(value, np.ndarray)
        else value
        if key == "task"
        else [frame[key] for frame in frames]
        for key, value in newest.items()
    }
