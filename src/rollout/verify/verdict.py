"""What `verify` finds."""

from __future__ import annotations

from typing import Literal, TypeAlias

from msgspec import Struct

from rollout.verify.differences import Difference

__all__ = ["Setting", "Unmeasured", "Verdict", "Which"]

Which: TypeAlias = Literal["alone", "together"]
"""One worker and batches of one; several of both."""


class Setting(Struct, frozen=True, kw_only=True):
    """One way to execute the sample, and what it took."""

    workers: int
    max_batch: int
    max_wait_ms: float
    mean_batch: float | None  # decisions in one call of the policy, on average
    wall_s: float


class Unmeasured(Struct, frozen=True, kw_only=True):
    """An episode that ended as an error in one of the settings, so that it cannot be compared."""

    suite: str
    task: str
    task_id: int
    episode: int
    setting: Which
    error: str  # type and message


class Verdict(Struct, frozen=True, kw_only=True):
    """What `verify` found."""

    equal: bool  # every episode was measured twice, with the same digest
    weak: bool  # too few decisions shared a batch for this to say much about batches
    policy: str
    targets: tuple[str, ...]
    tasks: int
    episodes: int  # in all
    alone: Setting
    together: Setting
    deterministic: bool | Literal["auto"]
    differences: tuple[Difference, ...]  # in the plan's order
    unmeasured: tuple[Unmeasured, ...]
