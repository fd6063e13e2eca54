"""`--compare` fails where a ratio has fallen by more than a tenth, and says what else became of them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from test_harness import OURS, THEIRS, a_case, a_record, by_hand

from benchmarks.compare import compare
from benchmarks.harness import Options, run
from benchmarks.record import CaseRecord, Record, write_record
from benchmarks.workload import Ratio
from benchmarks.workloads import NAMES, load
from rollout.errors import UsageError

OVER = Ratio(over="AsyncVectorEnv")


def one(ratio: float | None, workload: str = "transport", **parameters: int) -> CaseRecord:
    case = a_case(OURS, THEIRS, ratios=[OVER])
    record = by_hand(case, rollout=[None if ratio is None else 10.0 * ratio], AsyncVectorEnv=[10.0])
    record.workload = workload
    record.parameters |= parameters
    return record


@pytest.mark.parametrize(("now", "fails"), [(0.89, True), (0.91, False), (1.5, False)])
def test_a_fall_by_more_than_a_tenth_fails(now: float, fails: bool) -> None:
    found = compare(a_record(one(3.0)), a_record(one(3.0 * now)))
    assert found.failed is fails
    assert len(found.fallen) == fails
    if fails:
        assert found.lines() == ["transport, n = 4, rollout / AsyncVectorEnv: 3 → 2.67 (-11%)"]


def test_absolute_figures_are_not_compared() -> None:
    slower = one(3.0)
    for side in slower.sides:
        side.values = [value and value / 100 for value in side.values]
    slower.summarize(a_case(OURS, THEIRS, ratios=[OVER]))
    assert not compare(a_record(one(3.0)), a_record(slower)).lines()


def test_what_is_new_or_missing_is_said_and_does_not_fail() -> None:
    old = a_record(one(3.0), one(2.0, "memory"), one(2.0, "metaworld"))
    new = a_record(one(3.0), one(None, "memory"), one(4.0, "display"))
    found = compare(old, new)
    assert not found.failed
    assert found.lines() == [
        "display, n = 4, rollout / AsyncVectorEnv: new, 4",
        "memory, n = 4, rollout / AsyncVectorEnv: 2 → not measured",
        "metaworld: not measured",
    ]


def test_a_ratio_that_is_gone_because_we_failed_is_a_failure() -> None:
    broken = one(None, "memory")
    broken.sides[0].note = "AssertionError: no"
    found = compare(a_record(one(3.0), one(2.0, "memory")), a_record(one(3.0), broken))
    assert found.failed
    assert found.lines() == [
        "memory, n = 4, rollout / AsyncVectorEnv: 2 → rollout failed: AssertionError: no"
    ]


def test_every_ratio_is_ours_over_theirs_so_that_a_fall_is_ours() -> None:
    ratios = [
        ratio
        for name in NAMES
        for quick in (True, False)
        for case in load(name).cases(quick)
        for ratio in case.ratios
    ]
    assert len(ratios) > 20
    assert {ratio.of for ratio in ratios if ratio.over is not None} == {OURS.name}


def test_records_of_other_commits_are_not_shown_as_one(tmp_path: Path) -> None:
    other = a_record(one(3.0))
    other.commit = "def"
    for name, record in {"a.json": a_record(one(3.0)), "b.json": other}.items():
        write_record(tmp_path / name, record)
    with pytest.raises(UsageError, match="of other machines, versions or commits"):
        run(Options(measured=[tmp_path / "a.json", tmp_path / "b.json"]))


@pytest.mark.parametrize(
    "setting", [{"workloads": ["transport"]}, {"case": "n"}, {"rounds": 3}, {"peers": True}]
)
def test_what_was_measured_takes_no_settings(tmp_path: Path, setting: dict[str, Any]) -> None:
    write_record(tmp_path / "a.json", a_record(one(3.0)))
    with pytest.raises(UsageError, match="--from shows what was measured"):
        run(Options(measured=[tmp_path / "a.json"], **setting))


def test_other_parameters_make_another_case() -> None:
    found = compare(a_record(one(3.0), one(3.0, "memory")), a_record(one(3.0), one(1.0, "memory", n=5)))
    assert not found.failed
    assert found.lines() == [
        "memory, n = 4, rollout / AsyncVectorEnv: measured with other parameters, not compared"
    ]


def test_nothing_to_compare_is_a_failure() -> None:
    found = compare(a_record(one(3.0)), a_record(one(3.0, "memory")))
    assert found.failed
    assert found.lines()[-1] == "no ratio is in both files: nothing was compared"


@pytest.mark.parametrize(("now", "code"), [(0.89, 1), (0.91, 0)])
def test_the_exit_code_tells_of_a_fall(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], now: float, code: int
) -> None:
    files: dict[str, Record] = {"old.json": a_record(one(3.0)), "new.json": a_record(one(3.0 * now))}
    for name, record in files.items():
        write_record(tmp_path / name, record)
    options = Options(measured=[tmp_path / "new.json"], compare=tmp_path / "old.json")
    assert run(options) == code
    shown = capsys.readouterr()
    assert shown.out.startswith("2026-01-02, commit abc")
    assert len(shown.err.splitlines()) == code
