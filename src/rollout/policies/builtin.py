"""Policies that need no weights: `random`, `zero` and `expert`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from rollout.policies.base import Policy, PolicySpec, Request, Session
from rollout.spaces import rebuild
from rollout.types import EpisodeSpec, TaskInfo

if TYPE_CHECKING:
    import gymnasium

__all__ = ["ExpertPolicy", "RandomPolicy", "ZeroPolicy"]


class _SpacePolicy:
    """Acts from the action space alone; reads nothing, so nothing is rendered."""

    spec = PolicySpec(observation_keys=(), inline=True)

    def open_session(self, episode: EpisodeSpec, task: TaskInfo) -> Session:
        """The task's action space, rebuilt from its description."""
        return rebuild(task.action_space)

    def infer(self, requests: Sequence[Request]) -> Sequence[Any]:
        """One action a request."""
        return [[self._act(request.session, request)] for request in requests]

    def _act(self, space: gymnasium.Space[Any], request: Request) -> Any:
        raise NotImplementedError


class RandomPolicy(_SpacePolicy):
    """Uniform actions (Gymnasium's `Space.sample`), drawn anew from each decision's own seed."""

    def _act(self, space: gymnasium.Space[Any], request: Request) -> Any:
        space.seed(request.noise_seed)
        return space.sample()


class ZeroPolicy(_SpacePolicy):
    """The do-nothing action: zero where the space allows it, else the nearest element to it."""

    def _act(self, space: gymnasium.Space[Any], request: Request) -> Any:
        from gymnasium.wrappers.utils import create_zero_array

        return create_zero_array(space)


class ExpertPolicy:
    """Scripted experts that read the simulator's full state (`observation.environment_state`): Meta-World's own 50,
    and ours for LIBERO."""

    spec = PolicySpec(
        observation_keys=("observation.environment_state",), families=("metaworld", "libero"), inline=True
    )

    def open_session(self, episode: EpisodeSpec, task: TaskInfo) -> Session:
        """The script of this task."""
        return _expert(episode).open_session(episode, task)

    def infer(self, requests: Sequence[Request]) -> Sequence[Any]:
        """One action a request."""
        return [action for request in requests for action in _expert(request.episode).infer([request])]


def _expert(episode: EpisodeSpec) -> Policy:
    """The family's own; stateless, so that one made anew is as good as another."""
    if episode.suite.startswith("libero:"):
        from rollout.policies.libero_expert import LiberoExpert

        return LiberoExpert()
    from rollout.policies.metaworld_expert import MetaWorldExpert

    return MetaWorldExpert()
