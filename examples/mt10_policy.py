"""A small multi-task policy for Meta-World's MT10. `examples/train_mt10.py` trains it; then, from the root:

    rollout run metaworld:mt10 --policy examples.mt10_policy:load --episodes 10

The checkpoint says all that it is: weights, normalisation, chunk size and the instructions that it knows.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor, nn

from rollout import PolicySpec

STATE = "observation.environment_state"
FEATURE_DIM, ACTION_DIM = 39 + 9, 4
HAND, OBJECT, GOAL = slice(0, 3), slice(4, 7), slice(36, 39)  # positions in the state, metres


class Mt10Policy(nn.Module):
    """(state, instruction) → the next `chunk_size` actions, through one residual MLP for all tasks.

    The task is known from its instruction alone; one that it was not trained on is an error, not a guess.
    """

    mean: Tensor  # of the features (48,)
    scale: Tensor

    def __init__(
        self, instructions: Sequence[str], *, chunk_size: int, n_action_steps: int, width: int = 128
    ) -> None:
        super().__init__()
        self.spec = PolicySpec(
            observation_keys=(STATE,), chunk_size=chunk_size, n_action_steps=n_action_steps
        )
        self.instructions = tuple(instructions)
        self._index = {text: index for index, text in enumerate(self.instructions)}
        self.task = nn.Embedding(len(self.instructions), width)
        self.enter = nn.Linear(FEATURE_DIM, width)
        self.blocks = nn.ModuleList(_Block(width) for _ in range(2))
        self.leave = nn.Sequential(nn.LayerNorm(width), nn.Linear(width, chunk_size * ACTION_DIM))
        self.register_buffer("mean", torch.zeros(FEATURE_DIM))
        self.register_buffer("scale", torch.ones(FEATURE_DIM))

    def forward(self, batch: Mapping[str, Any]) -> Tensor:
        """Actions (B, chunk_size, 4) in [-1, 1]. Raises `ValueError` for an unknown instruction."""
        state: Tensor = batch[STATE]
        return self.predict(state, self.task_ids(batch["task"]).to(state.device)).clamp(-1, 1)

    def task_ids(self, instructions: Sequence[str]) -> Tensor:
        """Rows of the task embedding (B,). Raises `ValueError` for an unknown instruction."""
        unknown = set(instructions) - self._index.keys()
        if unknown:
            known = ", ".join(map(repr, self.instructions))
            raise ValueError(f"this policy was not trained on {min(unknown)!r}; it knows {known}")
        return torch.tensor([self._index[text] for text in instructions])

    def predict(self, state: Tensor, task_ids: Tensor) -> Tensor:
        """Actions (B, chunk_size, 4) before clamping, from states (B, 39) and task ids (B,)."""
        hidden = self.enter((features(state) - self.mean) / self.scale) + self.task(task_ids)
        for block in self.blocks:
            hidden = hidden + block(hidden)
        return self.leave(hidden).unflatten(-1, (self.spec.chunk_size, ACTION_DIM))

    def normalise(self, states: Tensor) -> None:
        """Take mean and scale of the features from training states (N, 39)."""
        seen = features(states)
        self.mean.copy_(seen.mean(0))
        self.scale.copy_(seen.std(0).clamp_min(1e-2))

    def save(self, path: Path) -> None:
        """Weights, normalisation and metadata in one safetensors file."""
        arguments = {
            "instructions": self.instructions,
            "chunk_size": self.spec.chunk_size,
            "n_action_steps": self.spec.n_action_steps,
            "width": self.enter.out_features,
        }
        path.parent.mkdir(parents=True, exist_ok=True)
        save_file(self.state_dict(), path, {"arguments": json.dumps(arguments)})


class _Block(nn.Sequential):
    def __init__(self, width: int) -> None:
        super().__init__(
            nn.LayerNorm(width), nn.Linear(width, 2 * width), nn.GELU(), nn.Linear(2 * width, width)
        )


def features(state: Tensor) -> Tensor:
    """The state (B, 39), and how hand, object and goal lie to each other, which tasks are about: (B, 48)."""
    hand, thing, goal = state[..., HAND], state[..., OBJECT], state[..., GOAL]
    return torch.cat((state, thing - hand, goal - thing, goal - hand), dim=-1)


def load(checkpoint: str = "examples/checkpoints/mt10.safetensors") -> Mt10Policy:
    """The policy that was saved there.

    Raises `FileNotFoundError` where there is no such file, `ValueError` where it is something else.
    """
    if not Path(checkpoint).is_file():
        raise FileNotFoundError(f"no checkpoint {checkpoint}: train it with `python examples/train_mt10.py`")
    try:
        with safe_open(checkpoint, framework="pt") as file:
            metadata = file.metadata() or {}
            weights = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
        policy = Mt10Policy(**json.loads(metadata["arguments"]))
        policy.load_state_dict(weights)
    except (SafetensorError, KeyError, RuntimeError) as exc:
        raise ValueError(f"{checkpoint} is no checkpoint of examples/train_mt10.py: {exc}") from exc
    return policy.eval()
