"""What LeRobot says while it loads a checkpoint: kept from standard output, which may be a stream of our events.

Loading runs in a thread of its own, beside others that print and log. So nothing of theirs is taken.
"""

from __future__ import annotations

import io
import logging
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from threading import Lock, get_ident
from typing import Any, Final, cast

__all__ = ["overheard"]

_TURN: Final = Lock()
"""Held while `sys.stdout` and the root logger are other than they were: nobody finds, and later puts back, another's
replacement. Loads wait for each other with it, which LeRobot needs too: transformers changes torch's default dtype."""


@contextmanager
def overheard() -> Iterator[io.StringIO]:
    """What this thread prints and logs, kept from standard output. Another thread that wants the same waits."""
    with _TURN:
        stdout, root, said = sys.stdout, logging.getLogger(), io.StringIO()
        proxy, kept = _Diverted(stdout, said), _Kept(said)
        sys.stdout = cast("Any", proxy)
        root.addHandler(kept)
        try:
            yield said
        finally:
            root.removeHandler(kept)
            proxy.end()
            if sys.stdout is cast(
                "Any", proxy
            ):  # a live display that began meanwhile puts the proxy back itself
                sys.stdout = stdout


class _Diverted:
    """A stream as it is, but for the thread that made this: what it writes goes to `said`."""

    def __init__(self, stream: Any, said: io.StringIO) -> None:
        self._stream, self._said = stream, said
        self._thread: int | None = get_ident()

    def end(self) -> None:
        """From now on it is `stream` for everybody: somebody may have kept it, and the system reuses idents."""
        self._thread = None

    def __getattr__(self, name: str) -> Any:
        return getattr(self._said if get_ident() == self._thread else self._stream, name)


class _Kept(logging.Handler):
    """Writes the records of the thread that made this to `said`.

    On the root logger, since `logging.warning` gives a root without handlers one for ever.
    """

    def __init__(self, said: io.StringIO) -> None:
        super().__init__()
        self._said, self._thread = said, get_ident()

    def emit(self, record: logging.LogRecord) -> None:
        """A record of another thread is left to other handlers, or where there are none, to logging's last resort."""
        last = logging.lastResort
        if get_ident() == self._thread:
            self._said.write(self.format(record) + "\n")
        elif last is not None and logging.getLogger().handlers == [self] and record.levelno >= last.level:
            last.handle(record)
