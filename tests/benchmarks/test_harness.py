"""The runner keeps every value, says what it could not measure, and survives an interrupt."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from benchmarks.harness import Options, measure_all, run
from benchmarks.record import CaseRecord, Record, Side, read_record, write_record
from benchmarks.runner import NOT_ASKED, measure_case
from benchmarks.table import as_markdown
from benchmarks.workload import Case, Contender, Ratio, Workload
from rollout.errors import UsageError

DEADLINE_S = 120.0
OURS = Contender(name="rollout", module="rollout", parameters={"inline": True})
THEIRS = Contender(name="AsyncVectorEnv", module="gymnasium")
NOWHERE = Contender(name="missing", module="no_such_contender")
PEER = Contender(name="peer", module="gymnasium", peer="lerobot")


def a_case(*contenders: Contender, **fields: Any) -> Case:
    values: dict[str, Any] = {
        "name": "n = 4",
        "parameters": {"n": 4, "images": False},
        "contenders": contenders,
        "timeout_s": DEADLINE_S,
    }
    return Case(**values | fields)


def empty(case: Case) -> CaseRecord:
    return CaseRecord(
        workload="transport",
        case=case.name,
        parameters=dict(case.parameters),
        unit=case.unit,
        better=case.better,
        sides=[],
    )


def a_record(*cases: CaseRecord) -> Record:
    return Record(
        complete=True,
        date="2026-01-02T03:04:05+00:00",
        commit="abc",
        rounds=2,
        seconds=0.3,
        quick=False,
        machine={
            "cpu": "A CPU",
            "cores": 2,
            "memory_gb": 8.0,
            "system": "Linux",
            "load_before": [0.1, 0.1, 0.1],
        },
        versions={"python": "3.11", "numpy": "2"},
        cases=list(cases),
    )


def by_hand(case: Case, **values: list[float | None]) -> CaseRecord:
    record = empty(case)
    record.sides = [Side(name=name, values=each) for name, each in values.items()]
    record.summarize(case)
    return record


def test_contenders_alternate_and_every_value_is_kept() -> None:
    case, said = a_case(OURS, THEIRS, ratios=[Ratio(over="AsyncVectorEnv", target=0.001)]), []
    record = empty(case)
    measure_case(record, case, rounds=2, seconds=0.3, peers=False, say=said.append)
    for side in record.sides:
        assert len(side.values) == len(side.extras) == 2
        assert side.note is None
        assert side.spread is not None
        assert side.spread.lowest <= side.spread.median <= side.spread.highest
    assert [line.split(": ")[1] for line in said] == [
        "rollout",
        "AsyncVectorEnv",
        "AsyncVectorEnv",
        "rollout",
    ]
    [ratio] = record.ratios
    ours, theirs = (side.values for side in record.sides)
    assert ratio.values == [our / their for our, their in zip(ours, theirs, strict=True)]
    assert ratio.met is True


def test_what_cannot_be_measured_is_one_line_and_a_dash() -> None:
    case, said = a_case(THEIRS, NOWHERE, PEER, ratios=[Ratio(of="AsyncVectorEnv", over="missing")]), []
    record = empty(case)
    measure_case(record, case, rounds=2, seconds=0.1, peers=False, say=said.append)
    theirs, missing, peer = record.sides
    assert theirs.note is None
    assert missing.note is not None
    assert "no_such_contender" in missing.note
    assert "\n" not in missing.note
    assert peer.note == NOT_ASKED
    assert missing.values == peer.values == [None, None]
    assert len(said) == 4  # a contender that failed is not tried again
    table = as_markdown(a_record(record))
    assert "|  |  | missing | env-steps/s | – | – | – |  |" in table
    assert f"* missing, transport: {missing.note}" in table


def test_a_contender_that_takes_too_long_is_stopped() -> None:
    case = a_case(THEIRS, timeout_s=0.5)
    record = empty(case)
    measure_case(record, case, rounds=1, seconds=DEADLINE_S, peers=False, say=lambda line: None)
    assert record.sides[0].note == "no answer within 0.5 s"


def test_a_ratio_is_how_many_times_better_whichever_way_better_is() -> None:
    ratio = Ratio(over="AsyncVectorEnv")
    more = by_hand(a_case(OURS, THEIRS, ratios=[ratio]), rollout=[30.0, 20.0], AsyncVectorEnv=[10.0, 10.0])
    less = by_hand(
        a_case(OURS, THEIRS, ratios=[ratio], better="less"), rollout=[1.0, 2.0], AsyncVectorEnv=[4.0, 4.0]
    )
    assert more.ratios[0].values == [3.0, 2.0]
    assert less.ratios[0].values == [4.0, 2.0]


def test_a_ratio_pairs_the_values_of_a_round() -> None:
    case = a_case(OURS, THEIRS, ratios=[Ratio(over="AsyncVectorEnv", target=2.0)])
    # A machine that is twice as slow in the second round is so to both.
    record = by_hand(case, rollout=[20.0, 10.0, None, 8.0], AsyncVectorEnv=[10.0, 5.0, 3.0])
    assert record.ratios[0].values == [2.0, 2.0, None]
    assert record.ratios[0].met is True


def test_the_table_says_ratios_targets_and_shares() -> None:
    faster = a_case(OURS, THEIRS, ratios=[Ratio(over="AsyncVectorEnv", target=3.0)])
    share = a_case(OURS, name="share", unit="of the bound", ratios=[Ratio(target=0.95)])
    table = as_markdown(
        a_record(by_hand(faster, rollout=[25000.0], AsyncVectorEnv=[10000.0]), by_hand(share, rollout=[0.96]))
    ).splitlines()
    assert table[0].startswith(
        "2026-01-02, commit abc, 2 rounds at most, 0.3 s a measurement. A CPU, 2 cores, 8 GB"
    )
    assert table[4] == "| transport | n = 4 | rollout | env-steps/s | 25,000 | 25,000 to 25,000 |  |  |"
    assert table[5] == (
        "|  |  | AsyncVectorEnv | env-steps/s | 10,000 | 10,000 to 10,000 "
        "| rollout 2.50 × (2.50 to 2.50) | ≥ 3 ×: **missed** |"
    )
    assert (
        table[6]
        == "| transport | share | rollout | of the bound | 0.96 | 0.96 to 0.96 | 96.0% | ≥ 95%: met |"
    )


def test_a_record_is_read_back_as_it_was_written(tmp_path: Path) -> None:
    case = a_case(OURS, THEIRS, ratios=[Ratio(over="AsyncVectorEnv", target=3.0)])
    record = a_record(by_hand(case, rollout=[30.0, None], AsyncVectorEnv=[10.0, 10.0]))
    write_record(tmp_path / "new.json", record)
    assert read_record(tmp_path / "new.json") == record


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ('{"schema": 99}', "schema 99, and this version reads schema 1: measure it again"),
        ('{"some": "file"}', "is no result of rollout bench"),
        ("nonsense", "is no result of rollout bench"),
    ],
)
def test_a_file_of_another_schema_is_refused_with_one_line(tmp_path: Path, text: str, said: str) -> None:
    path = tmp_path / "old.json"
    path.write_text(text)
    with pytest.raises(UsageError, match=said) as caught:
        read_record(path)
    assert "\n" not in str(caught.value)


def test_plots_are_drawn_of_what_has_values(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    from benchmarks.plots import draw

    case = a_case(OURS, THEIRS)
    record = a_record(by_hand(case, rollout=[30.0], AsyncVectorEnv=[10.0]))
    [path] = draw(record, tmp_path / "plots")
    picture = path.read_text()
    assert path.name == "transport.svg"
    assert "AsyncVectorEnv: 10 env-steps/s" in picture
    assert draw(record, tmp_path / "again")[0].read_text() == picture
    nothing = by_hand(case, rollout=[None], AsyncVectorEnv=[None])
    assert draw(a_record(nothing), tmp_path / "none") == []


@pytest.mark.parametrize("signum", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupt_keeps_what_was_measured(tmp_path: Path, signum: int) -> None:
    file = tmp_path / "partial.json"
    command = [sys.executable, "-m", "rollout", "bench", "transport", "--seconds", "0.1", "--json", str(file)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        first = process.stderr.readline()  # of a first measurement that is over
        assert "round 1: rollout: " in first
        process.send_signal(signum)
        stdout, stderr = process.communicate(timeout=DEADLINE_S)
    assert process.returncode == 128 + signum
    assert stderr.splitlines()[-1] == "interrupted: what was measured is kept, and marked as partial"
    assert "Traceback" not in stderr
    assert "**Partial: interrupted before its end.**" in stdout
    record = read_record(file)
    assert not record.complete
    assert record.cases[0].sides[0].values[0] > 0  # type: ignore[operator]
    assert record.machine["cores"] >= 1
    assert record.versions["rollout-engine"]
    _gone(process.pid)


def _gone(parent: int) -> None:
    """No contender of `parent` is left: they know the folder they were started in, which is removed."""
    ends = time.monotonic() + DEADLINE_S
    while any(_is_contender_of(pid, parent) for pid in map(int, filter(str.isdigit, os.listdir("/proc")))):
        assert time.monotonic() < ends
        time.sleep(0.05)


def _is_contender_of(pid: int, parent: int) -> bool:
    try:
        stat = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return False
    return int(stat[1]) == parent and stat[0] != "Z"


def test_a_whole_run_is_complete_and_written(tmp_path: Path) -> None:
    cases = [a_case(THEIRS), a_case(THEIRS, name="again")]
    options, record = Options(json=tmp_path / "run.json"), a_record()
    record.complete = False
    workload = Workload(name="transport", title="", cases=lambda quick: cases[:1] if quick else cases)
    measure_all(record, [workload], options, lambda line: None)
    assert record.complete
    assert [case.case for case in record.cases] == ["n = 4", "again"]
    assert [len(case.sides[0].values) for case in record.cases] == [2, 2]
    assert read_record(tmp_path / "run.json").cases == record.cases


def test_one_case_can_be_measured_alone() -> None:
    cases, record = [a_case(THEIRS), a_case(THEIRS, name="another")], a_record()
    workload = Workload(name="transport", title="", cases=lambda quick: cases)
    measure_all(record, [workload], Options(case="other"), lambda line: None)
    assert [case.case for case in record.cases] == ["another"]


def test_several_files_are_shown_as_one(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    files = []
    for rate, name in ((10.0, "a"), (20.0, "b"), (30.0, "b")):
        files.append(tmp_path / f"{rate}.json")
        write_record(files[-1], a_record(by_hand(a_case(OURS, name=name), rollout=[rate])))
    assert run(Options(measured=files, json=tmp_path / "all.json")) == 0
    joined = read_record(tmp_path / "all.json")
    assert [(case.case, case.sides[0].values) for case in joined.cases] == [("a", [10.0]), ("b", [30.0])]
    assert "| transport | a | rollout |" in capsys.readouterr().out
