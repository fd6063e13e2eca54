"""Exceptions as data: what a simulator raised, told without its own code having a say in whether it can be."""

from __future__ import annotations

import traceback

from rollout.sim.protocol import MAX_TEXT, MAX_TRACEBACK, Failed
from rollout.values import sendable

__all__ = ["failed", "message_of"]


def failed(exc: BaseException, *, building: bool) -> Failed:
    """`exc` as data. Its text is a simulator's own code, which may raise too."""
    try:
        text = "".join(traceback.format_exception(exc))
    except Exception:
        text = "".join(traceback.format_tb(exc.__traceback__))
    return Failed(
        sendable(type(exc).__name__), message_of(exc), sendable(text[-MAX_TRACEBACK:]), building=building
    )


def message_of(exc: BaseException) -> str:
    """What it says, as far as it can be said."""
    try:
        return sendable(str(exc)[:MAX_TEXT])
    except Exception:
        return "(its message could not be made: str() of the exception raised)"
