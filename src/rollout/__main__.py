"""The `rollout` command, which is also `python -m rollout`."""

from __future__ import annotations

import signal
from typing import NoReturn

__all__ = ["main"]


def main() -> NoReturn:
    """`rollout.cli.main`; while that is imported, Ctrl-C ends the process without a traceback."""
    python_s = signal.getsignal(signal.SIGINT)
    if python_s is signal.default_int_handler:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    from rollout.cli import main as command

    signal.signal(signal.SIGINT, python_s)
    command()


if __name__ == "__main__":
    main()
