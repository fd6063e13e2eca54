"""The small vision policy of the end-to-end workloads: pictures and a state in, a chunk of actions out.

One module for all contenders, in torch and numpy alone. Its weights come from a seed; it solves nothing, so that
episodes run to their horizon. A decision takes a few milliseconds on a CPU.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import nn

__all__ = ["SmallPolicy"]

GRID = 16.0
"""Actions are whole multiples of 1/16: a batch's rounding errors, and another torch's, then end in the same action, and
all contenders run the same episodes."""


class SmallPolicy(nn.Module):
    """Pictures (B, 3, H, W) in [0, 1], one a camera, and a state (B, S) to actions (B, chunk, A) in [-0.5, 0.5]."""

    def __init__(self, *, cameras: int, states: int, actions: int, chunk: int) -> None:
        super().__init__()
        self.eyes = nn.Sequential(
            nn.Conv2d(3, 16, 16, stride=16),
            nn.ReLU(),
            nn.Conv2d(16, 32, 3, stride=2),
            nn.ReLU(),
            nn.AdaptiveAvgPool2d(4),
            nn.Flatten(),
        )
        self.head = nn.Sequential(
            nn.Linear(cameras * 512 + states, 128), nn.ReLU(), nn.Linear(128, chunk * actions)
        )
        self._shape = (chunk, actions)
        draw = np.random.RandomState(0)  # of all generators, the one whose numbers never change
        with torch.no_grad():
            for weight in self.parameters():
                fan_in = weight[0].numel() if weight.ndim > 1 else 16
                drawn = draw.standard_normal(tuple(weight.shape)) * fan_in**-0.5
                weight.copy_(torch.from_numpy(drawn))

    def forward(self, pictures: Sequence[torch.Tensor], state: torch.Tensor) -> torch.Tensor:
        """Actions (B, chunk, A)."""
        seen = [self.eyes(picture - 0.5) for picture in pictures]
        actions = 0.5 * torch.tanh(self.head(torch.cat([*seen, state], dim=1)))
        return (actions * GRID).round().div(GRID).unflatten(1, self._shape)
