"""Policies that each break one promise, for `gym:toys:toy/Count-v0`: `broken_policies:Noisy` and so on."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import nn

from rollout import PolicySpec, Request
from rollout.types import EpisodeSpec, TaskInfo

STATE = "observation.state"


class Sound:
    """Swings ever wider within an episode, with noise."""

    spec = PolicySpec(observation_keys=(STATE,), chunk_size=2, n_action_steps=2)

    def open_session(self, episode: EpisodeSpec, task: TaskInfo) -> Any:
        return {"decisions": 0}

    def infer(self, requests: Sequence[Request]) -> Sequence[Any]:
        return [self._chunk(request) for request in requests]

    def _chunk(self, request: Request) -> np.ndarray:
        request.session["decisions"] += 1
        noise = np.random.default_rng(request.noise_seed).normal(size=(2, 2))
        swing = 0.01 * request.session["decisions"] * request.observation[STATE].mean()
        return np.asarray(np.tanh(swing + 0.1 * noise), np.float32)


class Noisy(Sound):
    def _chunk(self, request: Request) -> np.ndarray:
        return np.asarray(super()._chunk(request) + np.random.default_rng().normal(size=2), np.float32)


class Remembering(Sound):
    """Keeps in itself what belongs into a session."""

    def __init__(self) -> None:
        self._mine = {"decisions": 0}

    def open_session(self, episode: EpisodeSpec, task: TaskInfo) -> Any:
        return self._mine


class Averaging(Sound):
    def infer(self, requests: Sequence[Request]) -> Sequence[Any]:
        chunks = super().infer(requests)
        return [chunk - np.mean(chunks, axis=0) / 2 for chunk in chunks]


class Favouring(Sound):
    """The first of a batch gets more."""

    def infer(self, requests: Sequence[Request]) -> Sequence[Any]:
        first, *others = super().infer(requests)
        return [first, *(other / 2 for other in others)]


class Overwriting(Sound):
    def _chunk(self, request: Request) -> np.ndarray:
        chunk = super()._chunk(request)
        request.observation[STATE] /= 2
        return chunk


class Miscounting(Sound):
    def infer(self, requests: Sequence[Request]) -> Sequence[Any]:
        return [*super().infer(requests), np.zeros((2, 2), np.float32)]


class Misshapen(Sound):
    def _chunk(self, request: Request) -> np.ndarray:
        return np.zeros((2, 3), np.float32)


class Worded(Sound):
    def infer(self, requests: Sequence[Request]) -> Sequence[Any]:
        return [[["left", "right"]] * 2 for _ in requests]


class Short(Sound):
    def _chunk(self, request: Request) -> np.ndarray:
        return super()._chunk(request)[:1]


class Undefined(Sound):
    def _chunk(self, request: Request) -> np.ndarray:
        return np.asarray(super()._chunk(request) + (np.nan if request.decision == 2 else 0), np.float32)


class Ageing(Sound):
    """Takes the age of the batch's oldest episode for everybody's."""

    def infer(self, requests: Sequence[Request]) -> Sequence[Any]:
        oldest = max(request.decision for request in requests)
        return [chunk - 0.01 * oldest for chunk in super().infer(requests)]


class Specless(Sound):
    spec = {"observation_keys": [STATE]}  # type: ignore[assignment] # noqa: RUF012


def module() -> nn.Module:
    """A module that keeps its promises."""
    torch.manual_seed(0)
    net = nn.Linear(2, 2)

    class Module(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.net = net
            self.spec = PolicySpec(observation_keys=(STATE,))

        def forward(self, batch: dict[str, Any]) -> torch.Tensor:
            return torch.tanh(self.net(batch[STATE]))

    return Module()
