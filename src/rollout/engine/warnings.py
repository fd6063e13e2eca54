"""What a user should know of a run beside its numbers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

__all__ = ["Warnings"]

MOST: Final = 50
LONGEST: Final = 500  # characters


class Warnings:
    """Shows each distinct line once, and keeps it for the summary: `warnings(text)`."""

    def __init__(self, show: Callable[[str], None]) -> None:
        self.texts: list[str] = []
        self._show = show

    def __call__(self, text: str) -> None:
        """Warn of `text`, unless that was done already."""
        text = text[:LONGEST]
        if text in self.texts or len(self.texts) > MOST:
            return
        if len(self.texts) == MOST:
            text = "there are more warnings, which are not shown"
        self.texts.append(text)
        self._show(text)
