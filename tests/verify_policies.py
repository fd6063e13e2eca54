"""Policies that keep the promise of the same result, or break it."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from rollout.policies.base import PolicySpec, Request


class Promise:
    """Acts on what it sees and on its decision's own seed, two steps at a time."""

    spec = PolicySpec(chunk_size=2, n_action_steps=2)

    def infer(self, requests: Sequence[Request]) -> list[np.ndarray]:
        return [self.act(request, requests) for request in requests]

    def act(self, request: Request, batch: Sequence[Request]) -> np.ndarray:
        noise = np.random.default_rng(request.noise_seed).uniform(-0.1, 0.1, (2, 2))
        return noise + np.tanh(request.observation["observation.state"][:2]) / 2


class Counter(Promise):
    """Counts its decisions over all episodes."""

    decisions = 0

    def act(self, request: Request, batch: Sequence[Request]) -> np.ndarray:
        self.decisions += 1
        return super().act(request, batch) + self.decisions % 7 / 100 * np.array([1, 3])


class GlobalNumpy(Promise):
    """Draws from NumPy's global generator."""

    def act(self, request: Request, batch: Sequence[Request]) -> np.ndarray:
        return super().act(request, batch) + np.random.uniform(-0.1, 0.1, 2)


class Rounds(Promise):
    """From its second decision on, an action's second number depends in its last bits on the batch."""

    def act(self, request: Request, batch: Sequence[Request]) -> np.ndarray:
        rounding = 1e-6 * len(batch) if request.decision else 0.0
        return super().act(request, batch) + np.array([0, rounding])


class Amplifies(Promise):
    """The same, and much more of it."""

    def act(self, request: Request, batch: Sequence[Request]) -> np.ndarray:
        return super().act(request, batch) + 1e-4 * len(batch)


class Chooses:
    """For CartPole: whole numbers that depend on the batch."""

    def infer(self, requests: Sequence[Request]) -> list[np.ndarray]:
        return [np.array([(len(requests) + request.step) % 2]) for request in requests]
