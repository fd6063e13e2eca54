"""How an episode that could not be measured says why."""

from __future__ import annotations

from rollout.errors import ProtocolError, WorkerDied
from rollout.types import EpisodeFailure

__all__ = ["death", "why"]


def why(failure: EpisodeFailure) -> str:
    """In one line."""
    return f"{failure.type}: {failure.message}" if failure.message else failure.type


def death(exc: WorkerDied | ProtocolError) -> EpisodeFailure:
    """A worker's death as data, with what it printed last."""
    printed = exc.log_tail if isinstance(exc, WorkerDied) else ""
    tail = f"last lines that the worker printed:\n{printed}" if printed.strip() else ""
    return EpisodeFailure(type=type(exc).__name__, message=str(exc), traceback=tail)
