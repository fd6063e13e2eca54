"""A scripted expert for LIBERO: it reads the simulator's full state and the task's goal, nothing else."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from rollout.envs.observations import ENVIRONMENT_STATE
from rollout.errors import UsageError
from rollout.policies.base import PolicySpec, Request, Session
from rollout.policies.libero_motion import Script
from rollout.policies.libero_plan import refused, solve
from rollout.policies.libero_scene import Layout, Scene
from rollout.types import EpisodeSpec, TaskInfo

__all__ = ["LiberoExpert"]


class LiberoExpert:
    """Scripts over skills, from the task's BDDL goal: pick and place, open, close, turn on and off, push.

    Closed loop, one action a decision: float32 (1, 7), displacement, rotation and gripper in [-1, 1], for
    `control_mode=relative`. Deterministic: what it does depends on the states that it was shown, and on nothing else.
    """

    spec = PolicySpec(observation_keys=(ENVIRONMENT_STATE,), families=("libero",), inline=True)

    def open_session(self, episode: EpisodeSpec, task: TaskInfo) -> Session:
        """The task's script. Raises `UsageError` for a goal that no skill serves, and for absolute control."""
        reason = refused(task)
        if reason is not None:
            raise UsageError(reason)
        return _Episode(task)

    def infer(self, requests: Sequence[Request]) -> Sequence[np.ndarray]:
        """One action a request: float32 (1, 7)."""
        return [
            request.session.act(request.observation[ENVIRONMENT_STATE])[np.newaxis] for request in requests
        ]


class _Episode:
    """A script underway."""

    def __init__(self, task: TaskInfo) -> None:
        self._goal = task.goal
        self._layout = Layout(task.environment_state)
        self._script: Script | None = None

    def act(self, state: np.ndarray) -> np.ndarray:
        scene: Scene = self._layout.read(state)
        if self._script is None:
            self._script = solve(scene, self._goal)
            return next(self._script)
        return self._script.send(scene)
