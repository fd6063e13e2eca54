"""Has a ratio fallen? Ratios alone are compared: absolute figures are the machine's."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Final

from benchmarks.record import Record, Side
from benchmarks.workload import OURS

__all__ = ["MOST_FALL", "Comparison", "compare"]

MOST_FALL: Final = 0.10


@dataclass
class Comparison:
    """One line each."""

    fallen: list[str] = field(default_factory=list)  # by more than `MOST_FALL`
    held: list[str] = field(default_factory=list)  # did not fall so much, or rose
    broken: list[str] = field(default_factory=list)  # we were measured, and failed
    missing: list[str] = field(default_factory=list)  # had a value, and has none now
    new: list[str] = field(default_factory=list)

    @property
    def failed(self) -> bool:
        """Whether a ratio fell, or is none any more by our own fault, or there was nothing to compare."""
        return bool(self.fallen or self.broken) or not self.held

    def lines(self) -> list[str]:
        """What there is to say, the worst last."""
        nothing = [] if self.fallen or self.held else ["no ratio is in both files: nothing was compared"]
        return self.new + self.missing + self.broken + self.fallen + nothing


def compare(old: Record, new: Record) -> Comparison:
    """What became of every ratio. Of a workload that was not measured this time, one line says so; a case with other
    parameters, as `--quick` has them, is another case."""
    found, before, now = Comparison(), _ratios(old), _ratios(new)
    measured = {case.workload for case in new.cases}
    failed = {
        (case.workload, case.case): side.note for case in new.cases for side in case.sides if _broke(side)
    }
    other = _parameters(old), _parameters(new)
    for key, was in before.items():
        workload, case, _ = key
        if key in now and other[0][workload, case] != other[1][workload, case]:
            found.missing.append(f"{_name(key)}: measured with other parameters, not compared")
        elif key in now and was > 0:
            change = now[key] / was - 1.0
            line = f"{_name(key)}: {was:.3g} → {now[key]:.3g} ({change:+.0%})"
            (found.fallen if -change > MOST_FALL else found.held).append(line)
        elif (workload, case) in failed:
            found.broken.append(f"{_name(key)}: {was:.3g} → {OURS} failed: {failed[workload, case]}")
        elif workload in measured:
            found.missing.append(f"{_name(key)}: {was:.3g} → not measured")
    for workload in dict.fromkeys(workload for workload, _, _ in before if workload not in measured):
        found.missing.append(f"{workload}: not measured")
    found.new += [f"{_name(key)}: new, {value:.3g}" for key, value in now.items() if key not in before]
    return found


def _broke(side: Side) -> bool:
    return side.name == OURS and side.spread is None and side.note is not None


def _ratios(record: Record) -> dict[tuple[str, str, str], float]:
    """Every median, by workload, case and name."""
    return {
        (case.workload, case.case, ratio.name): ratio.spread.median
        for case in record.cases
        for ratio in case.ratios
        if ratio.spread is not None
    }


def _parameters(record: Record) -> dict[tuple[str, str], dict[str, Any]]:
    return {(case.workload, case.case): case.parameters for case in record.cases}


def _name(key: tuple[str, str, str]) -> str:
    workload, case, ratio = key
    return f"{workload}, {case}, {ratio}"
