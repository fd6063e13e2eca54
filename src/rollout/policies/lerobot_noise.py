"""Every decision's own noise for LeRobot's policies, whatever shares its batch."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Final

import torch

__all__ = ["predicted_chunk", "rows_at_once"]

DRAWS_NOTHING: Final = frozenset({"act"})

SHAPES: Final[Mapping[str, tuple[str, str]]] = {
    "diffusion": ("horizon", "action_dim"),
    "pi0": ("chunk_size", "max_action_dim"),
    "pi05": ("chunk_size", "max_action_dim"),
    "smolvla": ("chunk_size", "max_action_dim"),
}
"""The shape of one row of the `noise` that `predict_action_chunk` takes, in settings of the policy. VLA-JEPA and X-VLA
take one too, and do nothing with it."""


def rows_at_once(kind: str, rows: int | None) -> int | None:
    """How many rows a forward may have; one where the policy draws its noise itself, out of torch's generator."""
    return rows if kind in DRAWS_NOTHING or kind in SHAPES else 1


def predicted_chunk(policy: Any, batch: dict[str, Any], seeds: Sequence[int]) -> torch.Tensor:
    """The policy's `predict_action_chunk`, (B, chunk_size, action_dim), with row i's noise drawn from `seeds[i]`.

    Noise is drawn on the CPU where the policy takes it. For a row alone it is what LeRobot itself would draw after
    `torch.manual_seed(seed)` there, the initial noise first and then that of each denoising step.
    """
    kind = policy.config.type
    if kind in DRAWS_NOTHING:
        return _predict(policy, batch)
    if kind not in SHAPES:
        return _drawing_itself(policy, batch, seeds)
    generators = [torch.Generator().manual_seed(seed) for seed in seeds]
    shape = tuple(_size(policy.config, name) for name in SHAPES[kind])
    noise = torch.stack([torch.randn(shape, generator=generator) for generator in generators])
    weight = next(policy.parameters())
    # Flow matching integrates in float32 whatever the weights are; a diffusion starts in their dtype.
    noise = noise.to(weight.device, weight.dtype if kind == "diffusion" else torch.float32)
    with _denoising_with(policy, generators):
        return _predict(policy, batch, noise=noise)


def _predict(policy: Any, batch: dict[str, Any], **noise: torch.Tensor) -> torch.Tensor:
    chunk: torch.Tensor = policy.predict_action_chunk(batch, **noise)
    return chunk


def _size(config: Any, name: str) -> int:
    return int(config.action_feature.shape[0] if name == "action_dim" else getattr(config, name))


def _drawing_itself(policy: Any, batch: dict[str, Any], seeds: Sequence[int]) -> torch.Tensor:
    [seed] = seeds  # rows that draw from one generator would depend on each other
    device = next(policy.parameters()).device
    with torch.random.fork_rng([device] if device.type == "cuda" else []):
        torch.manual_seed(seed)
        return _predict(policy, batch)


@contextmanager
def _denoising_with(policy: Any, generators: list[torch.Generator]) -> Iterator[None]:
    """A DDPM sampler draws at every denoising step too, and LeRobot gives it no generator."""
    scheduler = getattr(getattr(policy, "diffusion", None), "noise_scheduler", None)
    if scheduler is None:
        yield
        return
    step = scheduler.step
    scheduler.step = lambda *given, **named: step(*given, **{**named, "generator": generators})
    try:
        yield
    finally:
        del scheduler.step  # the class's own is back
