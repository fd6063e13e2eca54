"""The standard streams of the `rollout` command: there from its beginning, and whole at its end."""

from __future__ import annotations

import os
import signal
import sys
import threading
from contextlib import suppress
from typing import NoReturn

import click

from rollout.errors import ResultsError

__all__ = ["leave", "open_standard_streams", "say", "write"]


def open_standard_streams() -> None:
    """Started without one of them (`<&-`), the next file to be opened would take its place."""
    for descriptor, name in enumerate(("stdin", "stdout", "stderr")):
        try:
            os.fstat(descriptor)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # the lowest free descriptor: this one
        if getattr(sys, name) is None:
            setattr(sys, name, os.fdopen(descriptor, "r" if name == "stdin" else "w"))


def say(message: str, code: int) -> int:
    """Write one line to standard error. Returns `code`."""
    from rollout.display.text import one_line

    message = one_line(message)  # it may quote a simulator, terminal codes included
    with suppress(OSError):  # a closed terminal
        click.echo(f"rollout: {message}", err=True)
    return code


def write(data: bytes) -> None:
    """Write `data` to standard output. Raises `ResultsError` where that fails, unless nobody reads any more."""
    try:
        sys.stdout.buffer.write(data)
        sys.stdout.buffer.flush()
    except BrokenPipeError:
        pass  # whoever reads has enough
    except OSError as exc:
        raise ResultsError(f"cannot write standard output: {exc.strerror}") from exc


def leave(code: int) -> NoReturn:
    """End the process, everything that was said delivered."""
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except OSError:  # a closed terminal or pipe: the interpreter's own flush must keep the exit code
            os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())
    if any(thread.name.startswith("rollout-") for thread in threading.enumerate()):
        # A forward that runs still, in PyTorch's C++, would abort the process when the interpreter's end meets it.
        os._exit(code)
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        # All is done and said: Ctrl-C may end the interpreter's own end, without a traceback of it.
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    sys.exit(code)
