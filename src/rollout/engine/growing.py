"""What may be changed of a run while it is under way."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import Any, TypeAlias

from msgspec import Struct

from rollout.engine.slots import Slot

__all__ = ["Grow", "Growing"]


class Growing(Struct, frozen=True):
    """What may be changed of a run that is under way."""

    take_on: Callable[[Slot], None]  # as the next worker
    limit: Callable[[int], None]  # most decisions in a batch
    waiting: Callable[[], int]  # episodes that no worker has begun


Grow: TypeAlias = Callable[[Growing], Coroutine[Any, Any, None]]
"""Runs beside a run, until that ends."""
