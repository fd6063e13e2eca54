"""How long episodes are, from some that ended and others that were cut off."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import Struct

__all__ = ["Seen", "mean_length"]


class Seen(Struct, frozen=True):
    """An episode's steps, and whether it ended by itself there; else it was cut off, and would have gone on."""

    steps: int
    ended: bool


def mean_length(seen: Sequence[Seen], horizon: int) -> float:
    """The steps that an episode is expected to take, `horizon` at most.

    Kaplan and Meier's estimate: at every length at which episodes ended, the share of those that had come so far. Where
    it leaves some that nobody saw end, they last for the whole horizon: a prediction that is too long, not too short.
    """
    alive, mean, before = 1.0, 0.0, 0
    for length in sorted({each.steps for each in seen if each.ended and each.steps < horizon}):
        mean += alive * (length - before)
        at_risk = sum(each.steps >= length for each in seen)
        alive *= 1 - sum(each.ended and each.steps == length for each in seen) / at_risk
        before = length
    return mean + alive * (horizon - before)
