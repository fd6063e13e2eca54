"""A record as Markdown: one table, and what it was measured on."""

from __future__ import annotations

from collections.abc import Iterator

from benchmarks.record import CaseRecord, RatioRecord, Record, Side, Spread

__all__ = ["as_markdown", "figure"]

HEADER = (
    "| workload | case | contender | unit | median | lowest to highest | ratio | target |\n|" + "---|" * 8
)
DASH = "–"


def as_markdown(record: Record) -> str:
    """The table, the notes below it, and the machine."""
    rows = [row for case in record.cases for row in _rows(case)]
    notes = dict.fromkeys(
        f"* {side.name}, {case.workload}: {side.note}"
        for case in record.cases
        for side in case.sides
        if side.note is not None
    )
    return "\n".join([_where(record), "", HEADER, *rows, *(["", *notes] if notes else [])]) + "\n"


def _where(record: Record) -> str:
    machine, versions = record.machine, record.versions
    packages = ", ".join(f"{name} {version}" for name, version in versions.items() if name != "python")
    settings = f"{record.rounds} round{'s' if record.rounds != 1 else ''} at most, {record.seconds:g} s a measurement"
    partial = "" if record.complete else " **Partial: interrupted before its end.**"
    return (
        f"{record.date[:10]}, commit {record.commit or 'unknown'}, {settings}{', quick' if record.quick else ''}."
        f"{partial} {machine['cpu']}, {machine['cores']} cores, {machine['memory_gb']:g} GB, {machine['system']}, "
        f"load before {machine['load_before'][0]:g}. Python {versions['python']}, {packages}."
    )


def _rows(case: CaseRecord) -> Iterator[str]:
    for index, side in enumerate(case.sides):
        first = index == 0
        cells = [
            case.workload if first else "",
            case.case if first else "",
            side.name,
            case.unit,
            *_spread(side.spread),
            *_ratio_cells(case, side),
        ]
        yield "| " + " | ".join(cells) + " |"


def _ratio_cells(case: CaseRecord, side: Side) -> tuple[str, str]:
    """A ratio stands in the row of whom it is over; a share of a bound in its own."""
    ratios = [ratio for ratio in case.ratios if side.name == (ratio.over or ratio.of)]
    return "; ".join(map(_ratio, ratios)), "; ".join(filter(None, map(_target, ratios)))


def _ratio(ratio: RatioRecord) -> str:
    if ratio.spread is None:
        return DASH
    spread = ratio.spread
    if ratio.over is None:
        return f"{spread.median:.1%}"
    return f"{ratio.of} {spread.median:.2f} × ({spread.lowest:.2f} to {spread.highest:.2f})"


def _target(ratio: RatioRecord) -> str:
    if ratio.target is None:
        return ""
    wanted = f"≥ {ratio.target:.0%}" if ratio.over is None else f"≥ {ratio.target:g} ×"
    return wanted + {None: "", True: ": met", False: ": **missed**"}[ratio.met]


def _spread(spread: Spread | None) -> tuple[str, str]:
    if spread is None:
        return DASH, DASH
    return figure(spread.median), f"{figure(spread.lowest)} to {figure(spread.highest)}"


def figure(value: float) -> str:
    """Three digits and more."""
    if abs(value) >= 1000:
        return f"{value:,.0f}"
    return f"{value:.1f}" if abs(value) >= 100 else f"{value:.3g}"
