"""Contenders in turn, round after round: a noisy minute is then noisy to all of them."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from benchmarks.job import Unavailable
from benchmarks.process import run_contender
from benchmarks.record import CaseRecord, Side
from benchmarks.table import figure
from benchmarks.workload import Case, Contender

__all__ = ["Say", "measure_case"]

Say = Callable[[str], None]

NOT_ASKED = "not asked for: --peers measures it in an environment of its own"


def measure_case(
    record: CaseRecord, case: Case, *, rounds: int, seconds: float, peers: bool, say: Say
) -> None:
    """Measure `case`, filling `record` as values arrive: what an interrupt finds there is kept.

    A contender that fails once is left out from then on, with one line in its note.
    """
    record.sides = [Side(name=contender.name) for contender in case.contenders]
    try:
        for number in range(min(rounds, case.most_rounds or rounds)):
            for contender in _in_turn(case.contenders, number):
                side = record.side(contender.name)
                if side.note is None:
                    _measure(record, case, contender, side, seconds, peers)
                    _tell(record, number, side, say)
            for side in record.sides:  # one value a round, or None
                side.values += [None] * (number + 1 - len(side.values))
                side.extras += [None] * (number + 1 - len(side.extras))
    finally:
        record.summarize(case)


def _in_turn(contenders: Sequence[Contender], number: int) -> Sequence[Contender]:
    """Every second round backwards: nobody always follows the same neighbour."""
    return contenders if number % 2 == 0 else contenders[::-1]


def _measure(
    record: CaseRecord, case: Case, contender: Contender, side: Side, seconds: float, peers: bool
) -> None:
    if contender.peer is not None and not peers:
        side.note = NOT_ASKED
        return
    try:
        measured = run_contender(record.workload, case, contender, seconds)
    except Unavailable as exc:
        side.note = " ".join(str(exc).split())
        return
    side.values.append(measured.value)
    side.extras.append(measured.extra)


def _tell(record: CaseRecord, number: int, side: Side, say: Say) -> None:
    value = side.values[-1] if side.values else None
    what = side.note or (f"{figure(value)} {record.unit}" if value is not None else "nothing")
    say(f"{record.workload}, {record.case}, round {number + 1}: {side.name}: {what}")
