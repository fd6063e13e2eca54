"""The final table: what a user reads when a run has ended."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

from msgspec import Struct
from rich.cells import cell_len
from rich.console import Console
from rich.text import Text

from rollout.display.limits import bound_by, remedy
from rollout.display.text import UNKNOWN, count, duration, label, one_line, pad, percent, plural, tell_apart
from rollout.results.efficiency import Bound, Limit
from rollout.results.summary import Stats, Summary, Timing

__all__ = ["print_summary"]

GAP: Final = "  "
NEAR: Final = 0.75  # of an eta: what binds is what it takes
LEAST_NAME: Final = 24  # cells of a name below which columns of less interest give way


def print_summary(summary: Summary, console: Console) -> None:
    """Print the results by task, by suite where there are several, and overall; and what the run took.

    Rows fit the width of a terminal: names are cut, and columns of least interest left out. Elsewhere (a
    file, a pipe) nothing is cut. Raises what the console's stream raises.
    """
    console.print()
    for line in _table(summary, console.width if console.is_terminal else None):
        console.print(line, soft_wrap=True)
    for line in _closing(summary):
        console.print(line, soft_wrap=not console.is_terminal)


class _Row(Struct, frozen=True, kw_only=True):
    id: str
    name: str
    stats: Stats
    style: str = ""


class _Column(Struct, frozen=True, kw_only=True):
    head: str
    cells: list[str]
    style: str = ""
    dispensable: bool = False

    @property
    def width(self) -> int:
        return max(len(self.head), *map(len, self.cells))


def _table(summary: Summary, width: int | None) -> Iterator[Text]:
    rows = list(_rows(summary, width or 1 << 16))
    if not rows:
        return
    columns = _columns([row.stats for row in rows])
    ids = max(len(row.id) for row in rows) + 1
    name = _longest(rows)
    if width is not None:
        room = max(8, _make_room(columns, width - ids, min(name, LEAST_NAME)))
        rows = list(_rows(summary, room))
        name = min(room, _longest(rows))
    heads = [column.head.rjust(column.width) for column in columns]
    yield Text(GAP.join([" " * ids + pad("task", name), *heads]), style="dim")
    for index, row in enumerate(rows):
        line = Text.assemble((f"{row.id:>{ids - 1}} ", "dim"), (pad(row.name, name), row.style))
        for column in columns:
            cell = GAP + column.cells[index].rjust(column.width)
            line.append(cell, style=f"{row.style} {column.style}".strip())
        line.rstrip()
        yield line


def _longest(rows: Sequence[_Row]) -> int:
    return max(len("task"), *(cell_len(row.name) for row in rows))


def _make_room(columns: list[_Column], width: int, least: int) -> int:
    """Drop dispensable `columns` until `least` cells are left of `width`; return what is left."""

    def left() -> int:
        return width - sum(column.width + len(GAP) for column in columns)

    while left() < least and any(column.dispensable for column in columns):
        columns.remove(next(column for column in reversed(columns) if column.dispensable))
    return left()


def _rows(summary: Summary, width: int) -> Iterator[_Row]:
    for suite, stats in summary.suites.items():
        tasks = sorted(
            (task for task in summary.tasks.values() if task.suite == suite), key=lambda task: task.task_id
        )
        if len(summary.suites) > 1:
            yield _Row(id="", name=one_line(suite), stats=stats, style="bold")
        names = tell_apart([label(task.task, task.instruction) for task in tasks], width)
        yield from (
            _Row(id=str(task.task_id), name=name, stats=task) for task, name in zip(tasks, names, strict=True)
        )
    if len(summary.tasks) > 1:
        yield _Row(id="", name=f"all {len(summary.tasks)} tasks", stats=summary.overall, style="bold")


def _columns(stats: Sequence[Stats]) -> list[_Column]:
    judged = any(_judged(entry) for entry in stats)
    columns = []
    if not judged or any(entry.n_unknown for entry in stats):
        columns.append(_Column(head="episodes", cells=[f"{entry.n_episodes}" for entry in stats]))
    if judged:
        columns += [
            _Column(head="success", cells=[_success(entry) for entry in stats]),
            _Column(head="rate", cells=[_percent(entry.success_rate) for entry in stats]),
            _Column(head="95 % CI", cells=[_interval(entry.ci95) for entry in stats], style="dim"),
        ]
    if any(entry.n_error for entry in stats):
        errors = [f"{entry.n_error or ''}" for entry in stats]
        columns.append(_Column(head="errors", cells=errors, style="red"))
    columns += [
        _Column(head="steps", cells=[_number(entry.mean_steps) for entry in stats], dispensable=True),
        _Column(head="return", cells=[_number(entry.mean_return) for entry in stats], dispensable=True),
    ]
    return columns


def _judged(stats: Stats) -> int:
    return stats.n_success + stats.n_failure


def _success(stats: Stats) -> str:
    return f"{stats.n_success}/{_judged(stats)}" if _judged(stats) else ""


def _percent(share: float | None) -> str:
    return UNKNOWN if share is None else f"{100 * share:.1f} %"


def _interval(bounds: tuple[float, float] | None) -> str:
    return "" if bounds is None else f"{100 * bounds[0]:.1f}–{100 * bounds[1]:.1f} %"


def _number(value: float | None) -> str:
    if value is None:
        return UNKNOWN
    digits = 0 if abs(value) >= 10_000 else 1 if abs(value) >= 10 else 3
    return f"{value:,.{digits}f}"


def _closing(summary: Summary) -> Iterator[Text]:
    if summary.timing is not None:
        yield Text(_timing(summary.timing), style="dim")
    if summary.bound is not None and summary.eta is not None:
        yield Text(_efficiency(summary.bound, summary.eta), style="dim")
    if summary.clipped_actions:
        yield Text(
            f"{plural(summary.clipped_actions, 'action')} clipped into the action space", style="yellow"
        )
    missing = summary.planned - summary.overall.n_episodes
    if not summary.complete:
        yield Text(f"incomplete: {plural(missing, 'episode')} of {summary.planned} not run", style="yellow")
    if summary.overall.n_error:
        yield Text(_errors(summary.overall), style="red")


def _errors(stats: Stats) -> str:
    """What the errors do to the number: at worst all of them would have failed, at best succeeded."""
    errors, judged = stats.n_error, _judged(stats)
    if errors == stats.n_episodes:
        return "no episode could be measured: there is no result"
    left_out = (
        f"{plural(errors, 'episode')} could not be measured and {'counts' if errors == 1 else 'count'} in no "
    )
    if not judged:
        return left_out + "mean"
    everything = judged + errors
    low, high = percent(stats.n_success / everything), percent((stats.n_success + errors) / everything)
    return f"{left_out}rate, which would be between {low} and {high} with {'it' if errors == 1 else 'them'}"


def _timing(timing: Timing) -> str:
    parts = []
    if timing.episodes_per_s is not None:
        parts.append(f"{count(timing.episodes_per_s)} episodes/s")
    if timing.steps_per_s is not None:
        parts.append(f"{count(timing.steps_per_s)} steps/s")
    if timing.mean_batch is not None:
        parts.append(f"mean batch {timing.mean_batch:.1f}")
    parts.append(f"policy {percent(timing.policy_busy)} busy")
    return f"{duration(timing.wall_s)}: {', '.join(parts)}"


def _efficiency(bound: Bound, eta: float) -> str:
    """`η 93 %: 41 s at best, bound by the simulators: more cores`."""
    # Where much was lost beside what binds, more of that would gain little. The bound knows nothing of workers.
    advice = remedy(bound.by) if eta >= NEAR or bound.by is Limit.WORKERS else None
    told = f"{bound_by(bound.by)}{f': {advice}' if advice else ''}"
    least = f"{bound.seconds:.1f} s" if bound.seconds < 10 else duration(bound.seconds)
    return f"η {percent(min(eta, 1.0))}: {least} at best, {told}"
