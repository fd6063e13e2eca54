"""How displays write numbers, durations, tasks and errors."""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import lru_cache
from itertools import takewhile
from typing import Final

from rich.cells import cell_len, set_cell_size

from rollout.display.base import Counters, TaskCounters
from rollout.display.rates import eta_s
from rollout.results.stats import wilson
from rollout.types import EpisodeFailure, EpisodeResult

__all__ = [
    "UNKNOWN",
    "ErrorLines",
    "alike",
    "count",
    "cut",
    "cut_left",
    "duration",
    "eta",
    "interval",
    "label",
    "one_line",
    "pad",
    "percent",
    "plural",
    "rate",
    "reason",
    "tell_apart",
]

UNKNOWN: Final = "–"
LONGEST: Final = 300  # characters of an error that one line shows

# What moves a terminal's cursor, sets its title, or asks it something: removed as a whole, or its rest would be read.
_TERMINAL_CODES: Final = re.compile(
    r"(?:\x1b\[|\x9b)[0-?]*[ -/]*[@-~]"  # CSI: colours, the cursor
    r"|(?:\x1b[\]PX^_]|[\x90\x98\x9d-\x9f])[^\x07\x1b\x9c]*(?:\x07|\x1b\\|\x9c)"  # OSC, DCS …: titles, links
    r"|\x1b[ -/]*[0-~]"
)


def percent(share: float) -> str:
    """`86 %`. Only all is 100 % and only none is 0 %: 999 of 1000 reads 99 %."""
    rounded = round(100 * share)
    return f"{min(max(rounded, 1), 99) if 0 < share < 1 else rounded} %"


def rate(task: TaskCounters) -> str:
    """The success rate; empty while nothing is measured, `–` where the environment has no success signal."""
    measured = task.successes + task.failures
    if measured:
        return percent(task.successes / measured)
    return UNKNOWN if task.done > task.errors else ""


def interval(task: TaskCounters) -> str:
    """The Wilson 95 % interval of the success rate as `60–96 %`; empty while nothing is measured."""
    bounds = wilson(task.successes, task.successes + task.failures)
    return "" if bounds is None else f"{100 * bounds[0]:.0f}–{100 * bounds[1]:.0f} %"


def count(value: float) -> str:
    """A rate in at most five characters: `4.2`, `87`, `1,234`, `12.3k`, `123k`."""
    if value < 9.95:
        return f"{value:.1f}"
    if value < 9_999.5:
        return f"{value:,.0f}"
    return f"{value / 1000:.1f}k" if value < 99_950 else f"{value / 1000:.0f}k"


def duration(seconds: float) -> str:
    """`35 s`, `3 min 20 s`, `2 h 05 min`."""
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60:02} s"
    return f"{whole // 3600} h {whole % 3600 // 60:02} min"


def eta(counters: Counters, elapsed_s: float) -> str:
    """`eta 35 s`; `eta at most 2 min 10 s` as long as no episode has ended, `eta unknown` as long as nothing ran."""
    seconds = eta_s(counters, elapsed_s)
    if seconds is None:
        return "eta unknown"
    ended = counters.done > counters.resumed
    return f"eta {'' if ended else 'at most '}{duration(seconds)}"


def plural(number: int, noun: str) -> str:
    """`1 worker`, `2 workers`."""
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


@lru_cache(maxsize=1024)
def one_line(text: str) -> str:
    """`text` without terminal codes, line breaks, control characters and runs of blanks: safe to print anywhere."""
    text = _TERMINAL_CODES.sub("", text)
    return " ".join("".join(char if char.isprintable() else " " for char in text).split())


@lru_cache(maxsize=1024)
def label(task: str, instruction: str) -> str:
    """What to call a task: its name, or its instruction where the name only repeats that with underscores."""
    name, said = one_line(task), one_line(instruction)
    repeats = name.replace("_", " ").lower().endswith(said.lower()) or len(name) > 40
    return said if said and repeats else name


def cut(text: str, width: int) -> str:
    """`text` in at most `width` cells, with an ellipsis where its end was cut."""
    return text if cell_len(text) <= width else set_cell_size(text, max(0, width - 1)).rstrip() + "…"


def pad(text: str, width: int) -> str:
    """`text` in exactly `width` cells, with an ellipsis where its end was cut."""
    return set_cell_size(cut(text, width), width)


def cut_left(text: str, width: int) -> str:
    """`text` in at most `width` cells, without its beginning: the ends of paths say more."""
    while cell_len(text) > max(width, 1):
        text = "…" + text[2:]
    return text


def tell_apart(names: Sequence[str], width: int) -> list[str]:
    """The names of a suite's tasks for a column of `width` cells.

    Where one does not fit, the words that all begin with give way to an ellipsis: cut at their ends, LIBERO's
    "pick up the black bowl next to the ramekin …" and "… next to the plate …" would read the same.
    """
    if len(names) < 2 or max(map(cell_len, names)) <= width:
        return list(names)
    words = [name.split() for name in names]
    columns = zip(*(split[:-1] for split in words), strict=False)  # the last word of a name always stays
    shared = sum(1 for _ in takewhile(lambda column: len(set(column)) == 1, columns))
    return ["…" + " ".join(split[shared:]) for split in words] if shared > 1 else list(names)


def reason(failure: EpisodeFailure) -> str:
    """`ValueError: the first line of its message`, safe to print, and not cut."""
    lines = (one_line(line) for line in failure.message.split("\n"))
    message = next((line for line in lines if line), "")
    return f"{one_line(failure.type)}: {message}" if message else one_line(failure.type)


def alike(failure: EpisodeFailure) -> tuple[str, str]:
    """What two errors share that differ at most in numbers: an episode, a step, an address."""
    return failure.type, re.sub(r"0x[0-9a-fA-F]+|\d+", "#", reason(failure))


class ErrorLines:
    """One line an error, and silence once its like has been told often enough."""

    def __init__(self, most_alike: int = 3) -> None:
        self._most_alike = most_alike
        self._seen: dict[tuple[str, str], int] = {}

    def tell(self, result: EpisodeResult) -> str | None:
        """The line for this result. None where it has no error, one that was told `most_alike` times, or was never
        tried: that its task cannot be built was said already."""
        if result.error is None or result.attempts == 0:
            return None
        kind = alike(result.error)
        seen = self._seen[kind] = self._seen.get(kind, 0) + 1
        if seen > self._most_alike:
            return None
        tail = " (more of these are only counted)" if seen == self._most_alike else ""
        return f"error: {_name(result)} episode {result.episode}: {reason(result.error)[:LONGEST]}{tail}"


def _name(result: EpisodeResult) -> str:
    """Suite and task; the task alone where the suite only repeats it, as Gymnasium's do."""
    suite, task = one_line(result.suite), one_line(result.task)
    if suite.endswith(f":{task}"):
        return task
    return f"{suite} {task if len(task) <= 40 else f'task {result.task_id}'}"
