"""What a simulator has to tell the user beside its numbers."""

from __future__ import annotations

from typing import Final

from rollout.values import sendable

__all__ = ["Remarks", "remark", "remarks"]

MOST: Final = 20  # of one episode: a text that differs at every step would flood the wire
LONGEST: Final = 500  # characters


class Remarks:
    """What is to be told of one episode: each line once."""

    def __init__(self) -> None:
        self._said: set[str] = set()
        self._unsent: tuple[str, ...] = ()

    def begin(self) -> None:
        """An episode begins: what is said again is news again."""
        self._said.clear()
        self._unsent = ()

    def add(self, text: str) -> None:
        """Say `text`, as one line."""
        line = sendable(" ".join(text.split()))[:LONGEST]
        if line not in self._said and len(self._said) < MOST:
            self._said.add(line)
            self._unsent += (line,)

    def take(self) -> tuple[str, ...]:
        """What was said since the last call."""
        unsent, self._unsent = self._unsent, ()
        return unsent


remarks: Final = Remarks()
"""Of the one simulator that a process holds."""


def remark(text: str) -> None:
    """Tell the user `text`, a line on what is odd about this simulator and costs no result.

    For adapters, in `build`, `reset`, `step` and `render`. A run shows each distinct line once, and keeps it in its
    summary: a text should name no step and no episode.
    """
    remarks.add(text)
