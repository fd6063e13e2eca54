"""`rollout bench`: workloads, case by case, into one record, its table and its pictures."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib.util import find_spec
from pathlib import Path

from benchmarks.compare import compare
from benchmarks.machine import commit, machine, versions
from benchmarks.process import FOLDER
from benchmarks.record import CaseRecord, Record, read_record, write_record
from benchmarks.runner import Say, measure_case
from benchmarks.table import as_markdown
from benchmarks.workload import Workload
from benchmarks.workloads import NAMES, load
from rollout.config import nearest
from rollout.errors import ResultsError, UsageError

__all__ = ["Options", "catalogue", "measure_all", "run"]

EXIT_FALLEN = 1


@dataclass(frozen=True, kw_only=True)
class Options:
    """What the command line asked for."""

    workloads: Sequence[str] = ()  # none: all
    quick: bool = False
    rounds: int | None = None
    seconds: float | None = None
    peers: bool = False
    case: str = ""  # cases that have it in their name
    measured: Sequence[Path] = ()  # shown together in place of measuring
    json: Path | None = None
    markdown: Path | None = None
    plots: Path | None = None
    compare: Path | None = None


def catalogue() -> str:
    """One line a workload."""
    return "\n".join(f"{name:12} {load(name).title}" for name in NAMES)


def run(options: Options) -> int:
    """Measure, write and print what `options` ask for: 0, or 1 where a ratio has fallen.

    `KeyboardInterrupt` ends the measuring and keeps what there is, in a record that says so. Raises `UsageError` before
    anything is measured.
    """
    names = _known(options.workloads)
    old = read_record(options.compare) if options.compare else None
    _check_writable(options)
    if options.measured:
        _refuse_settings(options)
        record = _joined(options.measured)
    else:
        workloads = [load(name) for name in names]
        _refuse_unknown_case(workloads, options)
        record = _empty(options)
        measure_all(record, workloads, options, _say)
    _deliver(record, options)
    return 0 if old is None else _compared(old, record)


def _compared(old: Record, record: Record) -> int:
    comparison = compare(old, record)
    for line in comparison.lines():
        _say(line)
    return EXIT_FALLEN if comparison.failed else 0


def measure_all(record: Record, workloads: Sequence[Workload], options: Options, say: Say) -> None:
    """Into `record`, until `KeyboardInterrupt`. It is written after every case: nothing that happens loses more."""
    try:
        for workload in workloads:
            for case in workload.cases(options.quick):
                if options.case not in case.name:
                    continue
                measured = CaseRecord(
                    workload=workload.name,
                    case=case.name,
                    parameters=dict(case.parameters),
                    unit=case.unit,
                    better=case.better,
                    sides=[],
                )
                record.cases.append(measured)
                measure_case(
                    measured,
                    case,
                    rounds=record.rounds,
                    seconds=record.seconds,
                    peers=options.peers,
                    say=say,
                )
                if options.json:
                    write_record(options.json, record)
        record.complete = True
    except KeyboardInterrupt:
        say("interrupted: what was measured is kept, and marked as partial")


def _joined(paths: Sequence[Path]) -> Record:
    """All cases; of a case that several have, the last file's. Raises `UsageError` where the files were not measured
    alike, as the table has one line that says where, when and how."""
    records = [read_record(path) for path in paths]
    for path, record in zip(paths, records, strict=True):
        if _made(record) != _made(records[0]):
            raise UsageError(
                f"{path} and {paths[0]} are of other machines, versions or commits: show them one by one"
            )
        for case in record.cases:
            if case.workload not in NAMES:
                raise UsageError(f"{path} has a workload {case.workload!r}, which is none of this version's")
    cases = {(case.workload, case.case): case for record in records for case in record.cases}
    joined = records[0]
    joined.complete = all(record.complete for record in records)
    joined.cases = sorted(cases.values(), key=lambda case: NAMES.index(case.workload))
    return joined


def _made(record: Record) -> tuple[object, ...]:
    machine = {name: value for name, value in record.machine.items() if name != "load_before"}
    return record.commit, record.quick, machine, record.versions


def _empty(options: Options) -> Record:
    return Record(
        date=datetime.now(UTC).isoformat(timespec="seconds"),
        commit=commit(FOLDER),
        rounds=options.rounds or (1 if options.quick else 5),
        seconds=options.seconds or (1.0 if options.quick else 3.0),
        quick=options.quick,
        machine=machine(),
        versions=versions(),
    )


def _deliver(record: Record, options: Options) -> None:
    table = as_markdown(record)
    if options.json:
        write_record(options.json, record)
    if options.markdown:
        try:
            options.markdown.write_text(table)
        except OSError as exc:
            raise ResultsError(f"cannot write {options.markdown}: {exc.strerror}") from exc
    print(table, end="", flush=True)
    if options.plots:
        try:
            from benchmarks.plots import draw

            draw(record, options.plots)
        except (OSError, ImportError) as exc:
            raise ResultsError(f"no plots in {options.plots}: {exc}") from exc


def _known(names: Sequence[str]) -> Sequence[str]:
    for name in names:
        if name not in NAMES:
            hint = nearest(name, NAMES)
            raise UsageError(f"no workload {name!r}{hint} (see `rollout bench --list`)")
    return names or NAMES


def _refuse_unknown_case(workloads: Sequence[Workload], options: Options) -> None:
    names = [case.name for workload in workloads for case in workload.cases(options.quick)]
    if not any(options.case in name for name in names):
        raise UsageError(f"no case has {options.case!r} in its name: there are {'; '.join(names)}")


def _refuse_settings(options: Options) -> None:
    if options.workloads or options.case or options.rounds or options.seconds or options.peers:
        raise UsageError(
            "--from shows what was measured: give no workload, --case, --rounds, --seconds or --peers"
        )


def _check_writable(options: Options) -> None:
    """An hour of measuring should not end at a folder that is not there."""
    for path in (options.json, options.markdown):
        if path is not None and (path.is_dir() or not os.access(path.parent, os.W_OK)):
            raise UsageError(f"cannot write {path}: give a file in a directory that you may write to")
    if options.plots is None:
        return
    if find_spec("matplotlib") is None:
        raise UsageError("--plots needs matplotlib; run: pip install 'rollout-engine[bench]'")
    try:
        options.plots.mkdir(parents=True, exist_ok=True)
    except OSError as exc:
        raise UsageError(f"cannot write into {options.plots}: {exc.strerror}") from exc


def _say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)
