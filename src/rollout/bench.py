"""`rollout bench`: how fast evaluation is here, beside its peers. The harness itself is the package `benchmarks`."""

from __future__ import annotations

import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from types import FrameType
from typing import Any, Final, NoReturn

import click

from rollout.errors import UsageError

__all__ = ["bench_command", "harness_folder"]

_HERE: Final = Path(__file__).parent
_PLACES: Final = (_HERE / "_harness", _HERE.parents[1])  # in a wheel, and in a checkout
_ENDING: Final = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


@click.command(name="bench")
@click.argument("workloads", nargs=-1, metavar="[WORKLOAD…]")
@click.option("--list", "list_", is_flag=True, help="List the workloads.")
@click.option("--quick", is_flag=True, help="Few cases, one short round of each: minutes, and noisy.")
@click.option(
    "--rounds",
    type=click.IntRange(1),
    metavar="N",
    help="Measurements of each contender, in turn.  [5; quick: 1]",
)
@click.option(
    "--seconds",
    type=click.FloatRange(0, min_open=True),
    metavar="S",
    help="How long a measurement lasts, about.  [3; quick: 1]",
)
@click.option("--peers", is_flag=True, help="Also the peers that need an environment of their own.")
@click.option("--case", default="", metavar="TEXT", help="Only cases with TEXT in their name.")
@click.option(
    "--from",
    "measured",
    multiple=True,
    metavar="FILE",
    help="Show what --json wrote before, in place of measuring; several files are joined.",
)
@click.option("--json", metavar="FILE", help="Write every value of every round.")
@click.option("--markdown", metavar="FILE", help="Write the table that is printed.")
@click.option("--plots", metavar="DIR", help="Write a picture for each workload.")
@click.option(
    "--compare", metavar="OLD.json", help="Fail where a ratio is more than 10 % lower than it was there."
)
def bench_command(workloads: tuple[str, ...], list_: bool, **options: Any) -> int:
    """Measure how fast evaluation is on this machine, and how that compares.

    For example: rollout bench transport --quick
    """
    folder = str(harness_folder())
    if folder not in sys.path:
        sys.path.insert(0, folder)  # before the working directory, which may have a package of that name
    harness: Any = import_module("benchmarks.harness")
    if list_:
        click.echo(harness.catalogue())
        return 0
    options["measured"] = tuple(map(Path, options["measured"]))
    for name in ("json", "markdown", "plots", "compare"):
        options[name] = Path(options[name]) if options[name] else None
    with _signals_interrupt() as received:
        code: int = harness.run(harness.Options(workloads=workloads, **options))
    return 128 + received[0] if received else code


def harness_folder() -> Path:
    """Where `import benchmarks` finds the harness. Raises `UsageError` where this installation lacks it."""
    for folder in _PLACES:
        if (folder / "benchmarks" / "harness.py").is_file():
            return folder
    raise UsageError(
        "this installation has no benchmarks: install the rollout-engine wheel, or use a checkout"
    )


@contextmanager
def _signals_interrupt() -> Iterator[list[int]]:
    """The signals that came. Each ends the measuring as Ctrl-C does in Python: what was measured is kept."""
    received: list[int] = []

    def interrupt(signum: int, frame: FrameType | None) -> NoReturn:
        received.append(signum)
        raise KeyboardInterrupt

    before = {signum: signal.signal(signum, interrupt) for signum in _ENDING}
    try:
        yield received
    finally:
        for signum, handler in before.items():
            signal.signal(signum, handler)
