"""What may come out of a policy's code without being the policy's failure."""

from __future__ import annotations

import asyncio
from typing import Final

__all__ = ["MEANT", "Cut"]


class Cut(asyncio.CancelledError):
    """Cancels what keeps the event loop from hearing of a signal, in the middle of its code (see `rollout.stop`)."""


MEANT: Final = (KeyboardInterrupt, SystemExit, Cut)
"""It is meant to end the process, or the run. All else is the policy's failure, any other `CancelledError` too: a task
group would take that for its own, and the run would end in silence."""
