"""One line of a diagnosis, and how it is printed."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping, Sequence
from typing import Literal

from msgspec import Struct
from rich.console import Console
from rich.text import Text

__all__ = ["Finding", "print_findings"]

Level = Literal["ok", "warning", "error"]

_COLOUR: Mapping[Level, str] = {"ok": "green", "warning": "yellow", "error": "red"}
_LEVEL_WIDTH, _SUBJECT_WIDTH = 9, 15
_MARGIN = _LEVEL_WIDTH + _SUBJECT_WIDTH


class Finding(Struct, frozen=True, kw_only=True):
    """What was found of one subject. An error keeps evaluations from running as they should."""

    level: Level
    subject: str
    detail: str
    fix: str | None = None  # a command to paste


def print_findings(findings: Sequence[Finding], console: Console) -> None:
    """Print each finding aligned, its fix on a line of its own that is never broken, and their count."""
    for finding in findings:
        lines = textwrap.wrap(finding.detail, max(console.width - _MARGIN, 20), break_on_hyphens=False)
        text = Text.assemble(
            (finding.level.ljust(_LEVEL_WIDTH), _COLOUR[finding.level]),
            (finding.subject.ljust(_SUBJECT_WIDTH), "bold"),
            f"\n{' ' * _MARGIN}".join(lines),
        )
        if finding.fix is not None:
            text.append_text(Text.assemble("\n", " " * _LEVEL_WIDTH, ("fix: ", "dim"), (finding.fix, "cyan")))
        console.print(text, soft_wrap=True, highlight=False)
    console.print(f"\n{_count(findings, 'error')}, {_count(findings, 'warning')}", highlight=False)


def _count(findings: Sequence[Finding], level: Level) -> str:
    count = sum(finding.level == level for finding in findings)
    return f"{count or 'no'} {level}{'' if count == 1 else 's'}"
