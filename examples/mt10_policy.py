"""A small multi-task policy for Meta-World's MT10. `examples/train_mt10.py` trains it; then, from the root:

    rollout run metaworld:mt10 --policy examples.mt10_policy:load --episodes 10

It has one of two heads: `regression` gives the chunk itself, `flow` carries noise into one of the chunks that the
demonstrations make likely. The checkpoint says all that it is: head, weights, normalisation, chunk size and the
instructions that it knows.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from msgspec import structs
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor, nn

from rollout import PolicySpec

STATE = "observation.environment_state"
FEATURE_DIM, ACTION_DIM = 39 + 9, 4
HAND, OBJECT, GOAL = slice(0, 3), slice(4, 7), slice(36, 39)  # positions in the state, metres
FLOW_STEPS = 8  # of Euler's method, from noise to actions
FREQUENCIES = 4  # of sine and cosine that tell the network how far along the flow it is


class Mt10Policy(nn.Module):
    """(state, instruction) → the next `chunk_size` actions, through one residual MLP for all tasks.

    The task is known from its instruction alone; one that it was not trained on is an error, not a guess.
    """

    head = "regression"
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
        return self.act(self.context(batch), batch).clamp(-1, 1)

    def context(self, batch: Mapping[str, Any]) -> Tensor:
        """What the network is asked about, (B, width). Raises `ValueError` for an unknown instruction."""
        state: Tensor = batch[STATE]
        return self.embed(state, self.task_ids(batch["task"]).to(state.device))

    def act(self, context: Tensor, batch: Mapping[str, Any]) -> Tensor:
        """Actions (B, chunk_size, 4) before clamping."""
        return self.decode(context)

    def task_ids(self, instructions: Sequence[str]) -> Tensor:
        """Rows of the task embedding (B,). Raises `ValueError` for an unknown instruction."""
        unknown = set(instructions) - self._index.keys()
        if unknown:
            known = ", ".join(map(repr, self.instructions))
            raise ValueError(f"this policy was not trained on {min(unknown)!r}; it knows {known}")
        return torch.tensor([self._index[text] for text in instructions])

    def embed(self, states: Tensor, task_ids: Tensor) -> Tensor:
        """States (B, 39) and task ids (B,) → (B, width)."""
        return self.enter((features(states) - self.mean) / self.scale) + self.task(task_ids)

    def decode(self, hidden: Tensor) -> Tensor:
        """(B, width) → a chunk (B, chunk_size, 4), through the residual blocks."""
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
        # One entry alone: safetensors writes several in an order of its own, another one each time.
        metadata = {"arguments": json.dumps({"head": self.head} | arguments)}
        save_file(self.state_dict(), path, metadata)


class Mt10FlowPolicy(Mt10Policy):
    """The same network as a velocity field that carries noise to actions: conditional flow matching (Lipman et al.,
    2023, "Flow Matching for Generative Modeling", straight paths), as in pi0.

    At time 0 a chunk is noise, at time 1 it is actions. The noise of each decision comes with the batch: which chunk
    is drawn depends on the decision's own seed, and on nothing that shares the batch.
    """

    head = "flow"

    def __init__(
        self, instructions: Sequence[str], *, chunk_size: int, n_action_steps: int, width: int = 128
    ) -> None:
        super().__init__(instructions, chunk_size=chunk_size, n_action_steps=n_action_steps, width=width)
        self.spec = structs.replace(self.spec, noise_shape=(chunk_size, ACTION_DIM))
        self.along = nn.Linear(chunk_size * ACTION_DIM + 2 * FREQUENCIES, width)

    def act(self, context: Tensor, batch: Mapping[str, Any]) -> Tensor:
        """Actions (B, chunk_size, 4) before clamping, from `batch["noise"]` of the same shape."""
        chunk: Tensor = batch["noise"]
        for step in range(FLOW_STEPS):
            time = torch.full((len(chunk),), step / FLOW_STEPS, dtype=chunk.dtype, device=chunk.device)
            chunk = chunk + self.velocity(chunk, time, context) / FLOW_STEPS
        return chunk

    def velocity(self, chunk: Tensor, time: Tensor, context: Tensor) -> Tensor:
        """Where a chunk (B, chunk_size, 4) moves at `time` (B,) from 0 to 1: its shape, per unit of time."""
        return self.decode(context + self.along(torch.cat((chunk.flatten(1), waves(time)), dim=-1)))


HEADS: Mapping[str, type[Mt10Policy]] = {each.head: each for each in (Mt10Policy, Mt10FlowPolicy)}


class _Block(nn.Sequential):
    def __init__(self, width: int) -> None:
        super().__init__(
            nn.LayerNorm(width), nn.Linear(width, 2 * width), nn.GELU(), nn.Linear(2 * width, width)
        )


def features(state: Tensor) -> Tensor:
    """The state (B, 39), and how hand, object and goal lie to each other, which tasks are about: (B, 48)."""
    hand, thing, goal = state[..., HAND], state[..., OBJECT], state[..., GOAL]
    return torch.cat((state, thing - hand, goal - thing, goal - hand), dim=-1)


def waves(time: Tensor) -> Tensor:
    """Sine and cosine of a time in [0, 1], at a few frequencies: (B,) → (B, 2 * FREQUENCIES)."""
    angles = torch.stack([time * (torch.pi * 2.0**octave) for octave in range(FREQUENCIES)], dim=-1)
    return torch.cat((angles.sin(), angles.cos()), dim=-1)


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
        arguments = json.loads(metadata["arguments"])
        policy = HEADS[arguments.pop("head", Mt10Policy.head)](**arguments)
        policy.load_state_dict(weights)
    except (SafetensorError, KeyError, TypeError, RuntimeError) as exc:
        raise ValueError(f"{checkpoint} is no checkpoint of examples/train_mt10.py: {exc}") from exc
    return policy.eval()
