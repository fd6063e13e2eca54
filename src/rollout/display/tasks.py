"""The live view's table of tasks: which of them to show, and their rows."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Final, TypeAlias

from msgspec import Struct
from rich.cells import cell_len

from rollout.display.base import Counters, TaskCounters
from rollout.display.rates import overall
from rollout.display.text import interval, label, one_line, pad, rate, tell_apart

__all__ = ["GAP", "Key", "Line", "Span", "bar", "choose", "task_table"]

Span: TypeAlias = tuple[str, str]  # text, Rich style
Line: TypeAlias = list[Span]
Key: TypeAlias = tuple[str, int]  # suite, task_id

GAP: Final = "  "
LEAST_INSTRUCTION: Final = 28  # cells of an instruction below which it says too little to be shown
SPACIOUS: Final = 25  # lines from which blank ones set the table apart even where tasks are left out


def task_table(counters: Counters, finished: Sequence[Key], width: int, room: int) -> list[Line]:
    """The table in at most `room` lines, none wider than `width`; empty where not even one task fits."""
    tasks, total = counters.tasks, overall(counters)
    several = len(tasks) > 1
    blanks = 2 if room >= SPACIOUS or room >= len(tasks) + several + 3 else 0
    rows, hidden = choose(tasks, finished, room - 1 - several - blanks)
    if not rows:
        return []
    columns = _Columns.fit(tasks, total, width)
    lines = [_heads(columns), *(_row(key, tasks[key], columns) for key in rows)]
    if hidden:
        lines.append([(" " * columns.left + _more(hidden), "dim")])
    if several:
        lines.append(_total(total, columns))
    return [[], *lines, []] if blanks else lines


def choose(
    tasks: Mapping[Key, TaskCounters], finished: Sequence[Key], room: int
) -> tuple[list[Key], list[TaskCounters]]:
    """Pick the tasks for `room` lines, and those left out.

    All in plan order where they fit. Otherwise one line is kept to count what is left out, and the others go
    to tasks with episodes under way, then to those that finished last, then to those that wait.
    """
    if len(tasks) <= room:
        return list(tasks), []
    active = [key for key, task in tasks.items() if task.active]
    latest = [key for key in reversed(finished) if not tasks[key].active]
    waiting = [key for key, task in tasks.items() if not task.active and task.done < task.planned]
    shown = [*active, *latest, *waiting][: max(0, room - 1)]
    left_out = tasks.keys() - shown
    return shown, [tasks[key] for key in left_out]


def bar(done: int, planned: int, width: int) -> Iterator[Span]:
    """A bar whose parts differ in shape as well as in colour; it is full only when everything is done."""
    halves = 2 * width * done // planned if planned else 0
    full = "━" * (halves // 2) + "╸" * (halves % 2)
    yield full, "green" if done >= planned else "cyan"
    yield "─" * (width - len(full)), "dim"


class _Columns(Struct, frozen=True, kw_only=True):
    names: dict[Key, str]
    # Widths in cells; 0 leaves a column out.
    ids: int
    name: int
    instruction: int
    suite: int
    bar: int
    episodes: int
    success: int
    errors: int

    @property
    def left(self) -> int:
        """Cells before the name: the mark and the task's index."""
        return 2 + self.ids + 1

    @classmethod
    def fit(cls, tasks: Mapping[Key, TaskCounters], total: TaskCounters, width: int) -> _Columns:
        ids = max(len(str(task_id)) for _, task_id in tasks)
        episodes = 2 * max(len(str(task.planned)) for task in tasks.values()) + 1
        # The total has no bar, and needs its room.
        bar = max(12 if width >= 120 else 6, 2 * len(str(total.planned)) - episodes)
        success = max(len(str(total.planned)) + 7, len("success") + 2)
        errors = len("errors") if total.errors else 0
        right = bar + 1 + episodes + 2 + success + 2 + len("65–100 %") + (errors and errors + 2)
        room = max(8, width - (2 + ids + 1) - 2 - right)
        names = _names(tasks, room)
        name = min(room, max(cell_len(name) for name in (*names.values(), total.task)))
        suites = {suite for suite, _ in tasks}
        suite = max(map(cell_len, suites))
        suite = suite if len(suites) > 1 and room - name >= suite + 2 else 0
        rest = room - name - (suite and suite + 2) - 2
        said = max(cell_len(_instruction(task)) for task in tasks.values())
        instruction = min(said, rest) if rest >= min(said, LEAST_INSTRUCTION) else 0
        return cls(
            names=names,
            ids=ids,
            name=name,
            instruction=instruction,
            suite=suite,
            bar=bar,
            episodes=episodes,
            success=success,
            errors=errors,
        )


def _names(tasks: Mapping[Key, TaskCounters], width: int) -> dict[Key, str]:
    by_suite: dict[str, dict[Key, str]] = {}
    for key, task in tasks.items():
        by_suite.setdefault(key[0], {})[key] = label(task.task, task.instruction)
    return {
        key: name
        for names in by_suite.values()
        for key, name in zip(names, tell_apart(list(names.values()), width), strict=True)
    }


def _instruction(task: TaskCounters) -> str:
    said = one_line(task.instruction)
    return "" if said == label(task.task, task.instruction) else said


def _heads(columns: _Columns) -> Line:
    cells = [" " * columns.left + pad("task", columns.name)]
    if columns.instruction:
        cells.append(pad("instruction", columns.instruction))
    if columns.suite:
        cells.append(pad("suite", columns.suite))
    cells.append("episodes".rjust(columns.bar + 1 + columns.episodes))
    cells += ["success".rjust(columns.success), "95 % CI".rjust(8)]
    if columns.errors:
        cells.append("errors")
    return [(GAP.join(cells), "dim")]


def _row(key: Key, task: TaskCounters, columns: _Columns) -> Line:
    complete = task.done >= task.planned
    mark: Span = ("✓ ", "green") if complete else ("▸ ", "cyan") if task.active else (GAP, "")
    style = "" if task.active or task.done else "dim"
    name = pad(columns.names[key], columns.name)
    line: Line = [mark, (f"{key[1]:>{columns.ids}} ", "dim"), (name + GAP, style)]
    if columns.instruction:
        line.append((pad(_instruction(task), columns.instruction) + GAP, "dim"))
    if columns.suite:
        line.append((pad(key[0], columns.suite) + GAP, "dim"))
    episodes = f" {task.done}/{task.planned}".rjust(columns.episodes + 1)
    line += [*bar(task.done, task.planned, columns.bar), (episodes, style)]
    return [*line, *_success(task, columns, "")]


def _total(total: TaskCounters, columns: _Columns) -> Line:
    texts = [width for width in (columns.name, columns.instruction, columns.suite) if width]
    name = pad(total.task, sum(texts) + 2 * len(texts))
    episodes = f"{total.done}/{total.planned}".rjust(columns.bar + 1 + columns.episodes)
    return [(" " * columns.left + name + episodes, "bold"), *_success(total, columns, "bold")]


def _success(task: TaskCounters, columns: _Columns, style: str) -> Line:
    successes = str(task.successes) if task.successes + task.failures else ""
    line: Line = [
        (GAP + f"{successes}{rate(task):>7}".rjust(columns.success), style),
        (GAP + interval(task).rjust(8), "dim"),
    ]
    if columns.errors:
        line.append((GAP + f"{task.errors or ''}".rjust(columns.errors), "bold red"))
    return line


def _more(hidden: Sequence[TaskCounters]) -> str:
    done = sum(task.done >= task.planned for task in hidden)
    running = sum(task.active > 0 and task.done < task.planned for task in hidden)
    numbers = {"running": running, "done": done, "waiting": len(hidden) - done - running}
    told = ", ".join(f"{number} {state}" for state, number in numbers.items() if number)
    return f"… and {len(hidden)} more: {told}"
