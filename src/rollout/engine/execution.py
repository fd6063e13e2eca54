"""How the chunks of a policy are executed: what the run says, else what the policy says."""

from __future__ import annotations

from typing import Final

from msgspec import Struct

from rollout.config import EvalConfig
from rollout.policies.base import PolicySpec

__all__ = ["Execution", "advice", "execution"]

LONG_CHUNK: Final = 50
"""Executing so many actions without looking is known to cost success: SmolVLA and pi0 come with n_action_steps 50 out
of chunks of 50, and are usually evaluated with 10 or less."""


class Execution(Struct, frozen=True, kw_only=True):
    """How chunks are executed."""

    n_action_steps: int | None = None  # of each chunk; None: all
    temporal_ensemble: float | None = None  # decay; one action a decision then
    clip: bool = False  # into the action space's bounds


def execution(config: EvalConfig, spec: PolicySpec) -> Execution:
    """The run's settings win. Executing more than one action a decision leaves nothing to ensemble."""
    steps, decay = config.n_action_steps, config.temporal_ensemble
    if decay is None and (steps is None or steps == 1):
        decay = spec.temporal_ensemble
    if decay is not None:
        steps = 1
    return Execution(
        n_action_steps=steps or spec.n_action_steps, temporal_ensemble=decay, clip=config.clip_actions
    )


def advice(config: EvalConfig, spec: PolicySpec) -> list[str]:
    """What a user should know of how the chunks will be executed, a line each."""
    used, size = execution(config, spec), spec.chunk_size
    steps = size if used.n_action_steps is None else used.n_action_steps
    found = []
    if size >= LONG_CHUNK and steps >= size:
        found.append(
            f"all {size} actions of each chunk are executed before the policy looks again, which is known to cost "
            "success: compare with --n-action-steps 10"
        )
    if steps > size > 1:
        found.append(
            f"n_action_steps is {steps}, but the policy's chunks have {size} actions: {size} are executed"
        )
    if spec.temporal_ensemble is not None and used.temporal_ensemble is None:
        found.append(f"--n-action-steps {steps} turns off the policy's own temporal ensembling")
    return found
