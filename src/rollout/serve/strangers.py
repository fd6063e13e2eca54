"""Requests of openpi's own clients, which say nothing but what they observe."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import numpy as np

from rollout.errors import ProtocolError
from rollout.policies.base import Policy, Request
from rollout.spaces import Fields
from rollout.types import EpisodeSpec, Observation, TaskInfo

__all__ = ["Stranger"]

FLOATS: Final = ("observation.state", "observation.environment_state")  # float32 by our convention
ENDLESS: Final = 1 << 31  # steps: nobody says how many there will be

UNTOLD_ACTIONS: Final = Fields(())
"""The action space of a robot that nobody described: a policy's `open_session` that compares its own with a task's has
to take exactly this for "not told". Of the observations, the task says as little: `{}`."""


class Stranger:
    """One connection of such a client, as if it were one endless episode."""

    def __init__(self, number: int, policy: Policy, names: Mapping[str, str]) -> None:
        """`number` counts connections; `names` maps openpi's keys to ours."""
        self._number, self._policy, self._names = number, policy, names
        self._decision = 0
        self._checked = False

    def request(self, message: Any) -> Request:
        """The request in `message`. Raises `ProtocolError` where it is none, or the policy needs more than it says."""
        observation = self._observation(message)
        episode = EpisodeSpec(
            suite="openpi:client",
            task="openpi",
            task_id=0,
            episode=self._number,
            seed=self._number,
            horizon=ENDLESS,
        )
        task = TaskInfo(
            suite="openpi:client",
            task="openpi",
            task_id=0,
            instruction=observation["task"],
            horizon=None,
            fps=20,  # LIBERO's
            action_space=UNTOLD_ACTIONS,
            observation_space={},
            success_rule=None,
        )
        if not self._checked:
            self._require_stateless(episode, task)
        self._decision += 1
        return Request(episode, task, self._decision - 1, self._decision - 1, None, observation)

    def _require_stateless(self, episode: EpisodeSpec, task: TaskInfo) -> None:
        spec = self._policy.spec
        if spec.n_obs_steps > 1:
            need = f"the last {spec.n_obs_steps} observations"
        elif spec.temporal_ensemble is not None:
            need = "to average the chunks of an episode"
        elif self._policy.open_session(episode, task) is not None:
            need = "to remember each episode"
        else:
            self._checked = True
            return
        raise ProtocolError(
            f"the policy needs {need}, and openpi's protocol knows no episodes: use rollout's own client, "
            "`rollout run TARGET --policy openpi:ws://...`"
        )

    def _observation(self, message: Any) -> Observation:
        if not isinstance(message, dict):
            raise ProtocolError(f"a request must be a map of observations, not {type(message).__name__}")
        found = {self._names.get(key, key): value for key, value in message.items() if isinstance(key, str)}
        keys = self._policy.spec.observation_keys
        missing = [key for key in keys or () if key not in found]
        if missing:
            raise ProtocolError(
                f"the policy reads {', '.join(missing)}, and the request has {', '.join(found)} "
                "(`rollout serve --observation THEIRS=OURS` maps names)"
            )
        wanted = found if keys is None else {key: found[key] for key in keys}
        task = found.get("task", "")
        if not isinstance(task, str):
            raise ProtocolError(f"the instruction must be text, not {type(task).__name__}")
        return {key: _leaf(key, value) for key, value in wanted.items()} | {"task": task}


def _leaf(key: str, value: Any) -> Any:
    if isinstance(value, str):
        return value
    if not isinstance(value, np.ndarray | np.generic | bool | int | float):
        raise ProtocolError(f"{key} must be an array or text, not {type(value).__name__}")
    array = np.array(value)  # writable, as policies may expect
    return array.astype(np.float32) if key in FLOATS and array.dtype.kind == "f" else array
