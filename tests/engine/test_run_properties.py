"""A whole run, with real processes: one record for each planned episode, whatever its workers die of and when."""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryDirectory

import fated
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

import rollout
from rollout.results.journal import read_journal
from rollout.types import EpisodeResult

RETRIES = 2


def expected(task: str, seed: int) -> tuple[str, str | None, int | None]:
    """Outcome, the error's type, and attempts; None for those, as only the first episodes of such a task are tried."""
    if task == "unbuildable":
        return "error", "RuntimeError", None
    match fated.fate(seed, task):
        case "raises":
            return "error", "ValueError", 1
        case "exits" | "always killed":
            return "error", "WorkerDied", RETRIES + 1
        case "failure":
            return "failure", None, 1
        case other:
            return "success", None, 1 + fated.KILLS.get(other, 0)


def seen(result: EpisodeResult) -> tuple[str, str | None, int | None]:
    attempts = None if "unbuildable" in result.task else result.attempts
    return result.outcome.value, result.error.type if result.error else None, attempts


@given(
    tasks=st.lists(st.sampled_from(["A", "B", "unbuildable"]), min_size=1, max_size=3, unique=True),
    episodes=st.integers(1, 5),
    seed=st.integers(0, 2**31),
    workers=st.integers(1, 4),
)
@settings(max_examples=8, deadline=None, phases=[Phase.reuse, Phase.generate])  # shrinking takes minutes
def test_each_planned_episode_has_exactly_one_record_whatever_dies(
    tasks: list[str], episodes: int, seed: int, workers: int
) -> None:
    with TemporaryDirectory() as marks:
        out = Path(marks) / "out"
        report = rollout.run(
            "random",
            [f"gym:fated:fated/{task}-v0" for task in tasks],
            episodes=episodes,
            seed=seed,
            workers=workers,
            retries=RETRIES,
            options={"marks": marks},
            out=out,
        )
        plan = [
            (task, episode, expected(task, seed + episode)) for task in tasks for episode in range(episodes)
        ]
        written = [(r.task, r.episode, seen(r)) for r in read_journal(out)[1]]
    named = [(f"fated/{task}-v0", episode, what) for task, episode, what in plan]
    assert [(r.task, r.episode, seen(r)) for r in report.episodes] == named
    assert sorted(written) == sorted(named)
