"""What binds a run, in the reader's words, and what to do about it."""

from __future__ import annotations

from typing import Final

from rollout.results.efficiency import Limit

__all__ = ["bound_by", "remedy"]

_WORDS: Final = {
    Limit.SIMULATORS: "bound by the simulators",
    Limit.POLICY: "bound by the policy",
    Limit.WORKERS: "bound by the workers",
    Limit.LONGEST: "bound by the longest episode",
    Limit.START_UP: "bound by the start-up",
}
_NOW: Final = {
    Limit.LONGEST: "waiting for the last episodes",
    Limit.START_UP: "building simulators",
}
_REMEDIES: Final = {
    Limit.SIMULATORS: "more cores",
    Limit.POLICY: "larger batches or --dtype bf16",
    Limit.WORKERS: "more --workers",
}


def bound_by(limit: Limit, *, now: bool = False) -> str:
    """`bound by the policy`: of a whole run, or of what goes on `now`."""
    return _NOW.get(limit, _WORDS[limit]) if now else _WORDS[limit]


def remedy(limit: Limit) -> str | None:
    """What would make it faster, in a few words; None where nothing would."""
    return _REMEDIES.get(limit)
