"""A record as pictures: one a workload, every case relative to ours, so that units do not matter."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.record import CaseRecord, Record, Side
from benchmarks.table import figure
from benchmarks.workload import OURS

__all__ = ["draw"]

BAR, GAP = 0.8, 0.9  # heights: of a bar, and between two cases
OUR_COLOUR, THEIR_COLOUR = "#3f51b5", "#9e9e9e"


def draw(record: Record, folder: Path) -> list[Path]:
    """Write `<workload>.svg` into `folder` for every workload with values; returns the files."""
    import matplotlib

    matplotlib.use("Agg")
    # The same record gives the same file: no date, no random ids. Text stays text, in the reader's own font.
    matplotlib.rcParams.update({"svg.hashsalt": "rollout", "svg.fonttype": "none", "font.size": 9})
    folder.mkdir(parents=True, exist_ok=True)
    drawn = []
    for workload in dict.fromkeys(case.workload for case in record.cases):
        cases = [case for case in record.cases if case.workload == workload and _baseline(case) is not None]
        if cases:
            drawn.append(_draw(workload, cases, folder / f"{workload}.svg"))
    return drawn


def _draw(workload: str, cases: Sequence[CaseRecord], path: Path) -> Path:
    from matplotlib import pyplot

    bars = sum(len(_measured(case)) for case in cases)
    height = 0.8 + 0.24 * (bars + 1.6 * len(cases))
    canvas, axes = pyplot.subplots(figsize=(7.5, height), layout="constrained")
    at = 0.0
    for case in cases:
        axes.text(0, at, case.case, fontweight="bold", va="center")
        at += GAP
        for side in _measured(case):
            _bar(axes, case, side, at)
            at += 1.0
        at += GAP - BAR / 2
    axes.axvline(1.0, color=OUR_COLOUR, linewidth=0.8, linestyle=":")
    axes.set_ylim(at, -GAP)
    axes.set_xlim(0, 1.6 * max(1.0, *(_times(case, side) for case in cases for side in _measured(case))))
    axes.set_yticks([])
    axes.set_xlabel(f"times as good as {OURS}, medians")
    axes.set_title(workload, loc="left")
    axes.spines[["top", "right", "left"]].set_visible(False)
    canvas.savefig(path, metadata={"Date": None})
    pyplot.close(canvas)
    return path


def _bar(axes: Any, case: CaseRecord, side: Side, at: float) -> None:
    assert side.spread is not None
    length = _times(case, side)
    axes.barh(at, length, BAR, color=OUR_COLOUR if side.name.startswith(OURS) else THEIR_COLOUR)
    axes.text(length, at, f" {side.name}: {figure(side.spread.median)} {case.unit}", va="center", fontsize=8)


def _measured(case: CaseRecord) -> list[Side]:
    return [side for side in case.sides if side.spread is not None]


def _baseline(case: CaseRecord) -> Side | None:
    """Ours, else the first that has a value."""
    measured = _measured(case)
    return next((side for side in measured if side.name == OURS), measured[0] if measured else None)


def _times(case: CaseRecord, side: Side) -> float:
    """How many times as good as the baseline: 1 of the baseline itself."""
    baseline = _baseline(case)
    assert baseline is not None
    assert baseline.spread is not None
    assert side.spread is not None
    ratio = side.spread.median / baseline.spread.median
    return ratio if case.better == "more" else 1.0 / ratio
