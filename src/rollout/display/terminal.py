"""The stream that a display writes to: what it can do, and a console on it that never ends the process."""

from __future__ import annotations

import os
import select
from typing import IO, TextIO

from rich.console import Console

__all__ = ["Terminal", "can_move_cursor", "forgiving", "ready"]


class Terminal(Console):
    """Rich's console without its liberties: text is literal, and a closed pipe raises `BrokenPipeError`."""

    def __init__(
        self,
        stream: TextIO,
        *,
        force_terminal: bool | None = None,
        width: int | None = None,
        height: int | None = None,
    ) -> None:
        # A policy's prints pass through this console: "[0.1, 0.2]" is no markup, and ":tada:" no emoji.
        super().__init__(
            file=forgiving(stream),
            markup=False,
            emoji=False,
            highlight=False,
            force_terminal=force_terminal,
            width=width,
            height=height,
        )

    def on_broken_pipe(self) -> None:
        """Let the error through: Rich would raise `SystemExit` and so end the evaluation."""
        raise  # noqa: PLE0704 -- Rich calls this while it handles the BrokenPipeError


def forgiving(stream: TextIO) -> TextIO:
    """Make `stream` replace characters that its encoding lacks, where it would raise."""
    reconfigure = getattr(stream, "reconfigure", None)
    if reconfigure is not None and not _speaks_unicode(stream):
        reconfigure(errors="replace")
    return stream


def can_move_cursor(stream: TextIO) -> bool:
    """Whether a live view can be drawn on `stream`: a terminal that moves its cursor and shows the bars.

    `NO_COLOR` alone does not rule it out: the view is then drawn without colours. `TERM=dumb`, an unset
    `TERM`, and Rich's own switches (`TTY_COMPATIBLE=0`, `TTY_INTERACTIVE=0`) do.
    """
    if not stream.isatty() or not os.environ.get("TERM"):
        return False
    console = Terminal(stream)
    return console.is_interactive and not console.is_dumb_terminal and _speaks_unicode(stream)


def ready(stream: IO[str]) -> bool:
    """Whether a write would not block: false while a terminal is paused (Ctrl-S), or the reader of a pipe is.

    A display that blocks there would stop the event loop, and every worker with it. True where nobody knows.
    """
    try:
        descriptor = stream.fileno()
    except (OSError, ValueError, AttributeError):
        return True
    poll = select.poll()
    poll.register(descriptor, select.POLLOUT)
    return bool(poll.poll(0))


def _speaks_unicode(stream: IO[str]) -> bool:
    return (getattr(stream, "encoding", None) or "utf-8").lower().replace("_", "-").startswith("utf")
