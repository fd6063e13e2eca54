"""Meta-World's scripted experts, one a task."""

from __future__ import annotations

import warnings
from collections.abc import Sequence

import numpy as np

from rollout.envs.observations import ENVIRONMENT_STATE
from rollout.errors import UsageError
from rollout.policies.base import PolicySpec, Request, Session
from rollout.types import EpisodeSpec, TaskInfo

__all__ = ["MetaWorldExpert"]


class MetaWorldExpert:
    """The scripts of `metaworld.policies`: they read the simulator's state, so nothing is rendered for them.

    Actions: float32 (1, 4), clipped to [-1, 1], the action space. The environment clips the displacement and
    MuJoCo the gripper's control, so the clipping changes no bit of a trajectory, reward included.
    """

    spec = PolicySpec(observation_keys=(ENVIRONMENT_STATE,), families=("metaworld",), inline=True)

    def open_session(self, episode: EpisodeSpec, task: TaskInfo) -> Session:
        """The task's script. Raises `UsageError` outside Meta-World."""
        if not task.suite.startswith("metaworld:"):
            raise UsageError(f"the expert of metaworld cannot act in {task.suite}; it knows metaworld:* only")
        from metaworld.policies import ENV_POLICY_MAP

        # They ask for more than the action space holds and leave the clipping to the environment. A filter
        # scoped to `infer` would not do: its thread would undo the filters that other threads set meanwhile.
        warnings.filterwarnings("ignore", r"Constant\(s\) may be too high", UserWarning, r"metaworld\.")
        return ENV_POLICY_MAP[task.task]()

    def infer(self, requests: Sequence[Request]) -> Sequence[np.ndarray]:
        """One action a request: float32 (1, 4)."""
        return [_act(request) for request in requests]


def _act(request: Request) -> np.ndarray:
    state = request.observation[ENVIRONMENT_STATE].copy()  # some scripts write into it
    action: np.ndarray = request.session.get_action(state)
    clipped: np.ndarray = np.clip(action, -1, 1)
    return clipped[np.newaxis]
