"""LeRobot's own evaluation loop, and a policy that tells how it was asked, for comparison."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

import rollout
from rollout.policies.base import Policy, PolicySpec, Request, noise_seed
from rollout.policies.load import as_policy
from rollout.types import EpisodeSpec, TaskInfo

TARGET = "gym:cameras_env:cameras/Reach-v0"


class Counting:
    """A policy that notes how large its batches are."""

    def __init__(self, policy: Policy) -> None:
        self._policy = policy
        self.sizes: list[int] = []
        self.episodes: set[EpisodeSpec] = set()

    @property
    def spec(self) -> PolicySpec:
        return self._policy.spec

    def open_session(self, episode: EpisodeSpec, task: TaskInfo) -> Any:
        self.episodes.add(episode)
        return self._policy.open_session(episode, task)

    def infer(self, requests: Sequence[Request]) -> Sequence[Any]:
        self.sizes.append(len(requests))
        return self._policy.infer(requests)


@contextmanager
def opened(folder: Path, **settings: Any) -> Iterator[Counting]:
    config = rollout.EvalConfig.create(targets=(TARGET,), device="cpu", **settings)
    with as_policy(f"lerobot:{folder}", config) as policy:
        yield Counting(policy)


class Reference:
    """LeRobot's loop over one episode, shown the observations that follow the given actions."""

    def __init__(self, folder: Path) -> None:
        import torch
        from lerobot.configs import PreTrainedConfig
        from lerobot.policies import make_pre_post_processors
        from lerobot.policies.factory import get_policy_class

        self._torch = torch
        config = PreTrainedConfig.from_pretrained(folder)
        self._policy = get_policy_class(config.type).from_pretrained(folder, config=config)
        self._pre, self._post = make_pre_post_processors(config, pretrained_path=str(folder))
        self._every = getattr(config, "action_chunk_size", None) or config.n_action_steps

    def actions(self, episode: EpisodeSpec, executed: np.ndarray, *, other_noise: int = 0) -> np.ndarray:
        """What LeRobot would do at each step, with the noise of the engine's decisions, or with other noise."""
        from cameras_env import Cameras
        from lerobot.envs.utils import preprocess_observation

        env = Cameras()
        self._policy.reset()
        seen, _ = env.reset(seed=episode.seed)
        found = []
        for step, action in enumerate(executed):
            if step % self._every == 0:
                self._torch.manual_seed(noise_seed(episode, step // self._every) + other_noise)
            batch = preprocess_observation(seen) | {"task": [env.task_description]}
            with self._torch.inference_mode():
                found.append(self._post(self._policy.select_action(self._pre(batch))))
            seen = env.step(action)[0]
        return np.concatenate(found)
