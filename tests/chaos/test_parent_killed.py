"""A run that is killed by SIGKILL at any moment leaves nothing but its results, and `--resume` completes them."""

from __future__ import annotations

import json
import random
import signal
import time
from pathlib import Path
from typing import Any

from chaos_tools import DEADLINE_S, SEED, Run, same, wait_until

from rollout.results.journal import read_actions, read_journal

SHORT, CHILDREN = "gym:chaos_env:chaos/Short-v0", "gym:chaos_env:chaos/Children-v0"


def shared_memory() -> set[str]:
    return {path.name for path in Path("/dev/shm").iterdir()}


def summary(run: Path) -> Any:
    """All but what the run took, and what it said."""
    found = json.loads((run / "summary.json").read_text())
    for own in ("timing", "bound", "eta", "shares", "warnings"):  # of the process that wrote it
        del found[own]
    return found


def test_a_run_killed_at_random_moments_and_resumed_ends_as_an_undisturbed_one(tmp_path: Path) -> None:
    arguments = (
        CHILDREN,
        SHORT,
        "--policy",
        "random",
        "--episodes",
        "40",
        "--workers",
        "3",
        "--video",
        "3",
        "--out",
    )
    began, before = time.monotonic(), shared_memory()
    Run(tmp_path, *arguments, "quiet").finish()
    takes_s = time.monotonic() - began
    chance, moments = random.Random(SEED), []
    for _ in range(4):
        moments.append(chance.uniform(0.0, takes_s))
        Run(tmp_path, *arguments, "run", "--resume").kill(after_s=moments[-1])
    Run(tmp_path, *arguments, "run", "--resume").finish()
    assert_equal_results(tmp_path / "run", tmp_path / "quiet", f"CHAOS_SEED={SEED}, killed after {moments} s")
    wait_until(lambda: shared_memory() <= before, DEADLINE_S, lambda: f"{shared_memory() - before}")


def test_a_run_killed_at_any_sync_of_its_files_is_completed(tmp_path: Path) -> None:
    arguments = (
        SHORT,
        "--policy",
        "chaos_env:killed_at_a_sync",
        "--episodes",
        "3",
        "--workers",
        "0",
        "--out",
    )
    Run(tmp_path, *arguments, "quiet", CHAOS_SYNC="0").finish()
    # Two for each file that is replaced: the journal with its header alone, the sealed one, and two summaries.
    for sync in (1, 2, 3, 5, 7):
        assert Run(tmp_path, *arguments, f"run{sync}", CHAOS_SYNC=str(sync)).wait() == -signal.SIGKILL
        Run(tmp_path, *arguments, f"run{sync}", "--resume", CHAOS_SYNC="0").finish()
        assert_equal_results(tmp_path / f"run{sync}", tmp_path / "quiet", f"killed at sync {sync}")


def assert_equal_results(run: Path, quiet: Path, story: str) -> None:
    records, expected = read_journal(run)[1], read_journal(quiet)[1]
    assert same(records) == same(expected), story
    assert {record.error for record in records} == {None}, story
    assert summary(run) == summary(quiet), story
    kept = read_actions(run)
    assert {key: kept[key].digest for key in (r.key for r in records)} == {
        r.key: r.digest for r in records
    }, story
    files, wanted = names(run), names(quiet)
    assert files == wanted, story


def names(run: Path) -> list[str]:
    """Every file of a results directory: nothing half-written among them."""
    return sorted(str(path.relative_to(run)) for path in run.rglob("*"))
