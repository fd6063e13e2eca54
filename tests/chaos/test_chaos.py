"""Workers killed at random, by every signal: not an episode is lost, counted twice, or other than in a quiet run."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from signal import SIGBUS, SIGKILL, SIGSEGV, SIGSTOP, SIGTERM, Signals

import anyio
import pytest
from chaos_tools import DEADLINE_S, SEED, Killer, Run, children, same

import rollout
from rollout import Report
from rollout.errors import UsageError
from rollout.results.journal import read_journal

TARGETS = ("gym:chaos_env:chaos/Short-v0", "gym:chaos_env:chaos/Long-v0")
FATAL = (SIGKILL, SIGSEGV, SIGTERM, SIGBUS)
RARELY_STOPPED = (*FATAL * 5, SIGSTOP)  # a stopped worker holds its place until its time is up
LIMITS = {"start_timeout_s": 10.0, "reset_timeout_s": 5.0, "step_timeout_s": 1.0}


async def _quiet(episodes: int) -> Report:
    return await rollout.evaluate("random", TARGETS, episodes=episodes, workers=2)


async def _under_fire(
    out: Path, episodes: int, signals: Sequence[Signals], every_s: float, *, at_forkserver: bool = False
) -> tuple[Report, Killer]:
    async with rollout.Engine(TARGETS, episodes=episodes, workers=4, retries=1000, **LIMITS) as engine:
        await engine.describe()
        killer = Killer(
            lambda: children(os.getpid()) if at_forkserver else engine.worker_pids,
            signals,
            every_s=every_s,
            seed=SEED,
            most=3 if at_forkserver else 1000,  # each costs what starting another one takes
        )
        with killer, anyio.fail_after(DEADLINE_S):
            return await engine.evaluate("random", out=out), killer


def assert_nothing_lost(report: Report, killer: Killer, out: Path, episodes: int) -> None:
    story = f"CHAOS_SEED={SEED}, {len(killer.shots)} shots: {killer.shots}"
    assert report.summary.complete, story
    assert report.summary.overall.n_error == 0, story
    assert sum(e.attempts - 1 for e in report.episodes) > 0, story
    assert same(report.episodes) == same(anyio.run(_quiet, episodes).episodes), story
    assert same(read_journal(out)[1]) == same(report.episodes), story


def test_workers_that_are_killed_at_random_cost_no_record_and_change_none(tmp_path: Path) -> None:
    report, killer = anyio.run(_under_fire, tmp_path, 180, RARELY_STOPPED, 0.12)
    assert len(killer.shots) > 10, killer.shots
    assert_nothing_lost(report, killer, tmp_path, 180)


def test_a_forkserver_that_is_killed_with_all_its_workers_costs_no_record(tmp_path: Path) -> None:
    async def main() -> tuple[Report, Killer]:
        return await _under_fire(tmp_path, 120, (SIGKILL, SIGSEGV), 0.3, at_forkserver=True)

    report, killer = anyio.run(main)
    assert_nothing_lost(report, killer, tmp_path, 120)


def test_a_worker_that_is_killed_while_it_lists_the_tasks_is_replaced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CHAOS_ONCE", str(tmp_path / "once"))
    report = rollout.run("random", "gym:dies_once:chaos/Short-v0", episodes=2, workers=1)
    assert (tmp_path / "once").exists()
    assert report.summary.overall.n_error == 0
    (tmp_path / "once").unlink()
    with pytest.raises(UsageError, match=r"killed by SIGKILL .* while listing its tasks"):
        rollout.run("random", "gym:dies_once:chaos/Short-v0", episodes=2, workers=1, retries=0)


@pytest.mark.soak
def test_thousands_of_episodes_under_fire_killed_and_resumed_are_those_of_a_quiet_run(tmp_path: Path) -> None:
    limits = ("--start-timeout", "20", "--reset-timeout", "5", "--step-timeout", "1", "--retries", "1000")
    arguments = (
        *TARGETS,
        "--policy",
        "random",
        "--episodes",
        "2000",
        "--workers",
        "4",
        *limits,
        "--out",
        "run",
    )
    for life, killed_after_s in enumerate((20, 30, 20, None)):
        run = Run(tmp_path, *arguments, *["--resume"] * (life > 0))
        with (
            Killer(lambda run=run: run.workers, (*FATAL * 2, SIGSTOP), every_s=0.3, seed=SEED + life),
            Killer(lambda run=run: run.forkservers, (SIGKILL,), every_s=15.0, seed=SEED - life),
        ):
            if killed_after_s is None:
                run.finish(within_s=1200)
            else:
                run.kill(after_s=killed_after_s)
    assert same(read_journal(tmp_path / "run")[1]) == same(anyio.run(_quiet, 2000).episodes)
