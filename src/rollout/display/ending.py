"""What a run leaves on the terminal: its table, a digest of its errors, and where the results are."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from rollout.display.digest import print_errors
from rollout.display.table import print_summary
from rollout.display.terminal import Terminal
from rollout.results.report import Report

__all__ = ["print_ending", "resume_command"]


def print_ending(report: Report, arguments: Sequence[str] | None) -> None:
    """Print the end of the run that `rollout` did with the command-line `arguments` (None: nobody knows them)."""
    out, again = report.out, None
    if out is not None and arguments is not None and report.summary.complete:
        again = resume_command(arguments, out)
    with suppress(OSError):  # a closed terminal or pipe must not cost the exit code
        terminal = Terminal(sys.stdout)
        print_summary(report.summary, terminal)
        if report.summary.overall.n_error:
            several = len(report.summary.tasks) > 1
            print_errors(report.episodes, terminal, several_tasks=several, out=out, again=again)
        if out is not None:
            terminal.print(f"results in {out}", highlight=False, soft_wrap=True)


def resume_command(arguments: Sequence[str], out: Path) -> str:
    """The command that goes on with the run that `rollout` with `arguments` put into `out`, quoted for a shell."""
    words = list(arguments)
    end = words.index("--") if "--" in words else len(words)
    more = [] if any(word.partition("=")[0] == "--out" for word in words) else ["--out", str(out)]
    more += [] if "--resume" in words else ["--resume"]
    return shlex.join(["rollout", *words[:end], *more, *words[end:]])
