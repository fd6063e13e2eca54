"""What the engine remembers of one episode: plain bookkeeping, no process and no loop.

The policy's own state is `Request.session`; this is the rest: observation history, actions, rewards, and the record
that they end in.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from copy import deepcopy
from functools import cached_property
from hashlib import blake2b
from math import isfinite
from typing import Any

import msgspec
import numpy as np

from rollout.engine.actions import EpisodeActions
from rollout.engine.execution import Execution
from rollout.engine.meant import MEANT
from rollout.errors import PolicyError, ProtocolError
from rollout.policies.base import Request, Session
from rollout.sim.protocol import RunDone, Shared, WireObservation
from rollout.types import EpisodeFailure, EpisodeResult, EpisodeSpec, Observation, Outcome, Spent, TaskInfo
from rollout.values import Array, Items, Value, pack_array, unpack, unpack_array

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
        execution: Execution,
        session: Session,
        read_shared: Callable[[Shared], np.ndarray] | None = None,
    ) -> None:
        """`read_shared` finds arrays in the memory that the worker shares with this process."""
        self.spec = spec
        self.steps = 0
        self.decisions = 0
        self.ended = False
        self._task, self._session = task, session
        self._read_shared = read_shared
        self._history: deque[Observation] = deque(maxlen=n_obs_steps)
        self._actions = EpisodeActions(task.action_space, execution)
        self._rewards: list[bytes] = []
        self._last: RunDone | None = None

    def observe(self, observations: Sequence[WireObservation]) -> None:
        """Take over what a reset or a chunk let the policy see, oldest first."""
        for wire in observations:
            observation: Observation = {"task": self._task.instruction}
            for key, value in wire.items():
                observation[key] = unpack_array(value) if type(value) is Array else self._unpack(value)
            self._history.append(observation)

    def _unpack(self, value: Value | Shared) -> Any:
        if not isinstance(value, Shared):
            return unpack(value)
        assert self._read_shared is not None  # else no slot was offered
        return self._read_shared(value)

    def request(self) -> Request:
        """The next decision's request."""
        observation = self._history[-1] if self._history.maxlen == 1 else _stacked(self._history)
        request = Request(self.spec, self._task, self.decisions, self.steps, self._session, observation)
        self.decisions += 1
        return request

    def chunk(self, actions: Any) -> Array | Items:
        """What the simulator executes of what the policy returned. Raises `PolicyError` naming the episode."""
        try:
            return self._actions.take(actions)
        except MEANT:
            raise
        except BaseException as exc:  # whatever an object does that NumPy asks to be an array
            where = f"{self.spec.suite} {self.spec.task} episode {self.spec.episode}, step {self.steps}"
            raise PolicyError(f"the policy returned {exc} (in {where})") from exc

    def executed(self, done: RunDone) -> int:
        """Take over what a chunk did, and return how many steps that were.

        Raises `ProtocolError` where that is not what a chunk can have done: such a worker would be asked for ever.
        """
        count = len(done.rewards) // 8
        going_on = not (done.terminated or done.truncated)
        blind = going_on and not done.observations
        if len(done.rewards) % 8 or not 0 < count <= self._actions.n_sent or blind:
            raise ProtocolError(
                f"{len(done.rewards)} bytes of rewards and {len(done.observations)} observations after "
                f"{self._actions.n_sent} actions"
            )
        self.steps += count
        self._rewards.append(done.rewards)
        self._actions.executed(count)
        self._last = done
        self.ended = not going_on
        if going_on:
            self.observe(done.observations)
        return count

    @cached_property
    def actions(self) -> Value:
        """All executed actions of an ended episode, leading axis: steps."""
        return self._actions.value

    def result(
        self, *, attempts: int, spent: Spent, built: bool, video: str | None, success_at_reset: bool = False
    ) -> EpisodeResult:
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
            success_at_reset=success_at_reset,
            steps=self.steps,
            sum_reward=total if finite else None,
            max_reward=float(rewards.max()) if finite else None,
            nonfinite_reward=not finite,
            terminated=last.terminated,
            truncated=last.truncated,
            clipped=self._actions.clipped,
            attempts=attempts,
            digest=episode_digest(
                self.actions, rewards, self.steps, last.terminated, last.truncated, last.success
            ),
            time_s=spent,
            video=video,
            built=built,
        )


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
        else [deepcopy(frame[key]) for frame in frames]  # the policy may write into what it gets
        for key, value in newest.items()
    }
