"""The live view as lines of styled text, laid out for a given width and height. Nothing here writes.

Lines are composed by hand. The same 34 rows as a `rich.table`, whose cells are measured and wrapped, took
20 ms a refresh against 1.3 ms, and lines that must never wrap need neither.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from msgspec import Struct
from rich.cells import cell_len

from rollout.display.base import Counters, RunPlan, WorkerState
from rollout.display.limits import bound_by, remedy
from rollout.display.rates import Rates
from rollout.display.tasks import GAP, Key, Line, bar, task_table
from rollout.display.text import count, cut, cut_left, duration, one_line, percent, plural

__all__ = ["View", "compose"]

WORKER_STYLES: Final = {  # in the order shown: what is cut off on a narrow terminal comes last
    WorkerState.STEPPING: "green",
    WorkerState.WAITING: "yellow",
    WorkerState.RESETTING: "cyan",
    WorkerState.BUILDING: "magenta",
    WorkerState.STARTING: "blue",
    WorkerState.IDLE: "dim",
}
WORKER_LETTERS: Final = {state: state.value[0] for state in WorkerState} | {
    WorkerState.STARTING: "+",
    WorkerState.IDLE: "·",
}  # "s" is stepping
ROOMY: Final = 100  # columns from which the line of rates is spelt out


class View(Struct, frozen=True, kw_only=True):
    """What one frame shows."""

    plan: RunPlan
    counters: Counters
    elapsed_s: float
    eta: str  # `eta 26 s`
    rates: Rates | None
    finished: Sequence[Key]  # complete tasks, the latest last
    ended: bool = False  # the last frame is its first lines: the table of results follows it


def compose(view: View, width: int, height: int) -> list[Line]:
    """Lay out `view` in at most `height - 1` lines, for a terminal `width` cells wide."""
    top = [*_header(view.plan, width), _progress(view, width)]
    if view.ended:
        return top
    bottom = [_workers(view.counters, width), _speed(view, width)]
    room = height - 1 - len(top) - len(bottom)
    table = task_table(view.counters, view.finished, width, room)
    return [*top, *table, *bottom][: max(1, height - 1)]


def _header(plan: RunPlan, width: int) -> list[Line]:
    targets, policy = one_line(" ".join(plan.targets)), one_line(plan.policy)
    rest: Line = [(f"{GAP}{plural(plan.workers, 'worker')}", "")] if plan.workers else []
    if plan.out:
        rest += [(f"{GAP}→ ", "dim"), (cut_left(one_line(plan.out), width // 2), "")]
    room = width - len(f"rollout{GAP}") - sum(cell_len(text) for text, _ in rest)
    named: Line = [("rollout", "bold"), (GAP + cut(targets, room), "bold cyan")]
    if cell_len(f"{targets}{GAP}policy {policy}") <= room:
        return [[*named, (f"{GAP}policy ", "dim"), (policy, ""), *rest]]
    return [[*named, *rest], [("policy   ", "dim"), (cut_left(policy, width - 9), "")]]


def _progress(view: View, width: int) -> Line:
    counters = view.counters
    # Room for the longest text that can follow, so that the bar keeps its length while numbers grow.
    bar_width = min(60, max(5, width - 2 * len(str(counters.planned)) - 48))
    line: Line = [
        *bar(counters.done, counters.planned, bar_width),
        (f"{GAP}{counters.done}/{counters.planned} episodes", "bold"),
    ]
    if counters.done:
        line.append((f"{GAP}{percent(counters.done / counters.planned)}", ""))
    line.append((f"{GAP}{duration(view.elapsed_s)}", ""))
    if counters.done < counters.planned:
        line.append((f"{GAP}stopped", "yellow") if view.ended else (f"{GAP}{view.eta}", "dim"))
    return line


def _workers(counters: Counters, width: int) -> Line:
    states = counters.workers
    by_state = {state: states.count(state) for state in WORKER_STYLES}
    legend: Line = [
        (f"{GAP}{number} {state}", WORKER_STYLES[state]) for state, number in by_state.items() if number
    ]
    if counters.retries:
        retries = "1 retry" if counters.retries == 1 else f"{counters.retries} retries"
        legend.append((GAP + retries, "yellow"))
    strip: Line = [(GAP, ""), *((WORKER_LETTERS[state], WORKER_STYLES[state]) for state in states)]
    if len("workers") + sum(len(text) for text, _ in [*strip, *legend]) > width:
        strip = []
    return [("workers", "dim"), *strip, *legend]


def _speed(view: View, width: int) -> Line:
    rates = view.rates
    if rates is None or view.counters.steps == 0:
        return [("no step yet", "dim")]
    roomy = width >= ROOMY
    parts = [f"{count(rates.steps_per_s)} steps/s", f"{count(rates.decisions_per_s)} decisions/s"]
    if rates.mean_batch is not None:
        parts.append(f"{'mean batch' if roomy else 'batch'} {count(rates.mean_batch)}")
    parts.append(f"policy {percent(rates.policy_busy)} busy")
    if rates.bound is not None:
        parts.append(bound_by(rates.bound, now=True) if roomy else f"bound: {rates.bound}")
        advice = remedy(rates.bound)
        if advice and len(GAP.join(parts)) + len(advice) + 2 <= width:
            parts[-1] += f": {advice}"
    while len(parts) > 2 and len(GAP.join(parts)) > width:  # what bounds the run is the last to go
        parts.pop(len(parts) // 2)
    return [(GAP.join(parts), "")]
