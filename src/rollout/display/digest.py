"""The digest of a run's errors: what went wrong how often, and what to type next. Ten lines at most."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Final

from msgspec import Struct
from rich.cells import cell_len
from rich.console import Console
from rich.text import Text

from rollout.display.advice import advice
from rollout.display.text import alike, cut, label, one_line, plural, reason
from rollout.types import EpisodeFailure, EpisodeResult

__all__ = ["print_errors"]

MOST_KINDS: Final = 3
MOST_NAMED: Final = 3  # episodes of a kind
LONGEST_NAME: Final = 24  # cells of a task's
LONGEST: Final = 300  # characters of a message where no terminal's width says less
OWN: Final = ("WorkerDied", "WorkerTimeout")  # whose messages say it all


def print_errors(
    episodes: Iterable[EpisodeResult],
    console: Console,
    *,
    several_tasks: bool = False,
    out: Path | None = None,
    again: str | None = None,
) -> None:
    """Print the errors among `episodes` by kind, the commonest first, each with what to do about it.

    `several_tasks` says whether the run had several, so that episodes are named with theirs. `out` is the results
    directory, and `again` the command that tries the errors once more, where there are such. On a terminal each
    message is cut to one line; advice and commands never are. Raises what the console's stream raises.
    """
    kinds = sorted(_by_kind(episodes), key=lambda kind: kind.number, reverse=True)
    if not kinds:
        return
    width = console.width if console.is_terminal else None
    for kind in kinds[:MOST_KINDS]:
        _print(console, *_told(kind, several_tasks, width))
    rest = kinds[MOST_KINDS:]
    if rest:
        more = plural(sum(kind.number for kind in rest), "error")
        _print(console, Text(f"  and {more} of {plural(len(rest), 'other kind')}", style="red"))
    if out is not None:
        where = one_line(str(out / "episodes.jsonl"))
        _print(console, Text(f"in full, with tracebacks: {where} (error.traceback)", style="dim"))
    if again is not None:
        _print(console, Text.assemble(("then run only these again: ", "dim"), one_line(again)))


def _print(console: Console, *lines: Text) -> None:
    for line in lines:
        console.print(line, soft_wrap=True)  # the terminal's own wrapping, so that a command can be copied


class _Kind(Struct):
    """Errors that are alike: how many, and the first of them."""

    failure: EpisodeFailure
    number: int = 0
    first: list[EpisodeResult] = []
    tasks: set[tuple[str, int]] = set()
    attempts: int = 0  # at most
    untried: int = 0

    def add(self, result: EpisodeResult) -> None:
        self.number += 1
        if self.number <= MOST_NAMED:
            self.first.append(result)
        self.tasks.add(result.task_key)
        self.attempts = max(self.attempts, result.attempts)
        self.untried += result.attempts == 0


def _by_kind(episodes: Iterable[EpisodeResult]) -> Iterable[_Kind]:
    kinds: dict[tuple[str, str], _Kind] = {}
    for result in episodes:
        if result.error is not None:
            kinds.setdefault(alike(result.error), _Kind(result.error)).add(result)
    return kinds.values()


def _told(kind: _Kind, several_tasks: bool, width: int | None) -> Iterator[Text]:
    head = f"  {kind.number}× "
    where = f"  ({_where(kind, several_tasks)})"
    room = LONGEST if width is None else max(width - cell_len(head) - cell_len(where), 20)
    yield Text.assemble((head + cut(_what(kind.failure), room), "red"), (where, "dim"))
    yield Text(f"     → {advice(kind.failure)}")


def _what(failure: EpisodeFailure) -> str:
    what = reason(failure)
    return what.removeprefix(f"{failure.type}: ") if failure.type in OWN else what


def _where(kind: _Kind, several_tasks: bool) -> str:
    """`episodes 1, 5; tried 3×`, with the task in front, or before each number, where a reader could not know it."""
    one = len(kind.tasks) == 1
    names = [cut(label(result.task, ""), LONGEST_NAME) for result in kind.first]
    numbers = [
        str(result.episode) if one else f"{name} {result.episode}"
        for name, result in zip(names, kind.first, strict=True)
    ]
    more = ", …" if kind.number > MOST_NAMED else ""
    task = f"{names[0]} " if one and several_tasks else ""
    tried = f"; tried {kind.attempts}×" if kind.attempts > 1 else ""
    tried = f"; {kind.untried} not tried" if kind.untried else tried
    return f"{task}episode{'s' if kind.number > 1 else ''} {', '.join(numbers)}{more}{tried}"
