"""Policies of torch that break the promise of the same result; apart, because torch takes seconds to import."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from rollout.policies.base import PolicySpec, Request
from verify_policies import Promise


class GlobalTorch(Promise):
    """Draws from torch's global generator."""

    def act(self, request: Request, batch: Sequence[Request]) -> np.ndarray:
        return super().act(request, batch) + torch.rand(2).numpy() / 10


class RoundingModule(torch.nn.Module):
    """A module whose rounding depends on the batch: with fixed shapes it cannot show."""

    spec = PolicySpec(n_action_steps=None)

    def forward(self, batch: dict[str, Any]) -> torch.Tensor:
        state: torch.Tensor = batch["observation.state"]
        return torch.tanh(state[:, None, :2]) / 2 + 1e-6 * len(state)
