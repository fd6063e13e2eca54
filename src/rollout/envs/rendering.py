"""How long a simulator's pictures take: what they cost is told apart from the physics by the adapters themselves."""

from __future__ import annotations

import time
from typing import Final

__all__ = ["Rendering", "rendering"]


class Rendering:
    """A stopwatch that runs inside its `with`. One within another counts once."""

    def __init__(self) -> None:
        self._depth = 0
        self._wall_s = self._cpu_s = 0.0

    def __enter__(self) -> None:
        self._depth += 1
        if self._depth == 1:
            self._began, self._cpu_began = time.perf_counter(), time.process_time()

    def __exit__(self, *_: object) -> None:
        self._depth -= 1
        if self._depth == 0:
            self._wall_s += time.perf_counter() - self._began
            self._cpu_s += time.process_time() - self._cpu_began

    def take(self) -> tuple[float, float]:
        """Seconds of wall time and of CPU time since the last call."""
        taken = self._wall_s, self._cpu_s
        self._wall_s = self._cpu_s = 0.0
        return taken


rendering: Final = Rendering()
"""Of the one simulator that a process holds: an adapter renders `with rendering:`."""
