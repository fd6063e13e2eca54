"""A contender's side of the harness: one job in, one measurement out. Standard library only, for any Python from 3.10:
peers' environments have nothing else of ours.

    from benchmarks.job import Job, Measured, answer

    def measure(job: Job) -> Measured: ...

    if __name__ == "__main__":
        answer(measure)
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
import traceback
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from typing import Any

__all__ = ["Job", "Measured", "Unavailable", "answer"]


class Unavailable(Exception):  # no error: a line of the table has a dash instead
    """Raised where a contender cannot run here, with one line that says why and what helps."""


@dataclass(frozen=True)
class Job:
    """What is asked for."""

    workload: str
    case: dict[str, Any]  # the case's parameters and the contender's
    seconds: float  # about how long to measure, warm-up excluded; cases of fixed work need not care


@dataclass(frozen=True)
class Measured:
    """The answer."""

    value: float  # in the case's unit
    extra: dict[str, Any] = field(default_factory=dict)  # JSON; kept beside the value


def answer(measure: Callable[[Job], Measured]) -> None:
    """Read a job from standard input, measure, and print the answer as the last line of standard output.

    Whatever else is printed meanwhile, also by other processes, goes to standard error.
    """
    told = os.dup(1)
    os.dup2(2, 1)
    job = Job(**json.load(sys.stdin))
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    try:
        reply = asdict(measure(job))
    except (Unavailable, ImportError) as exc:
        reply = {"error": one_line(exc)}
    except Exception as exc:
        traceback.print_exc()
        reply = {"error": f"{type(exc).__name__}: {one_line(exc)}"}
    with contextlib.suppress(OSError):
        sys.stdout.flush()
    with os.fdopen(told, "w") as stdout:
        stdout.write(json.dumps(reply) + "\n")


def one_line(exc: BaseException) -> str:
    """What an exception says, without its line breaks."""
    return " ".join(str(exc).split()) or type(exc).__name__
