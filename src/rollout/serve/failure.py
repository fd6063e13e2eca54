"""What went wrong with a request, as text."""

from __future__ import annotations

import traceback
from typing import Final

from rollout.errors import ProtocolError

__all__ = ["Failure", "failed"]

WAY: Final = ("rollout.engine.", "rollout.serve.", "rollout.policies.load")  # to the policy


class Failure(Exception):
    """Stands for another exception, without its frames: they hold the batch, and on a GPU much memory."""

    def __init__(self, message: str, trace: str) -> None:
        super().__init__(message)
        self.trace = trace  # its traceback; empty where the client is to blame


def failed(exc: Exception) -> Failure:
    """`exc` as text."""
    if isinstance(exc, Failure):
        return exc
    return Failure(str(exc) or type(exc).__name__, "" if isinstance(exc, ProtocolError) else _traceback(exc))


def _traceback(exc: Exception) -> str:
    """From where the policy was called on."""
    cause: BaseException = exc.__cause__ or exc
    trace = cause.__traceback__
    while trace is not None and trace.tb_frame.f_globals.get("__name__", "").startswith(WAY):
        trace = trace.tb_next
    shown = cause.with_traceback(trace or cause.__traceback__)
    return "".join(traceback.format_exception(shown)).rstrip()
