"""Records kept packed are the records, in the plan's order."""

from __future__ import annotations

import msgspec
import pytest

from rollout.results.packed import Records
from rollout.types import EpisodeFailure, EpisodeResult, EpisodeSpec, Outcome, Spent

SPECS = [
    EpisodeSpec(
        suite="gym:a", task=f"task {task}", task_id=task, episode=episode, seed=1000 + episode, horizon=9
    )
    for task in range(2)
    for episode in range(2)
]


def record(spec: EpisodeSpec, **values: object) -> EpisodeResult:
    identity = {
        name: getattr(spec, name) for name in ("suite", "task", "task_id", "episode", "seed", "init_state")
    }
    told = {
        "outcome": Outcome.SUCCESS,
        "success": True,
        "steps": 3,
        "sum_reward": 0.1,
        "max_reward": 1e308,
        "terminated": True,
        "truncated": False,
        "attempts": 1,
        "digest": "ab" * 16,
        "time_s": Spent(reset=0.1, sim=0.2, render=0.3, wait=0.4),
    }
    return EpisodeResult(**identity | told | values)


RECORDS = [
    record(SPECS[0]),
    record(
        SPECS[1], outcome=Outcome.UNKNOWN, success=None, sum_reward=None, video="videos/a/1.mp4", built=True
    ),
    record(
        SPECS[2],
        outcome=Outcome.ERROR,
        success=None,
        digest=None,
        error=EpisodeFailure(type="WorkerDied", message="\u2620", traceback="…"),
    ),
]


def test_records_come_back_equal_and_in_the_plans_order() -> None:
    records = Records(SPECS)
    for result in reversed(RECORDS):
        records.add(result)
    assert list(records) == RECORDS
    assert records == tuple(RECORDS)
    assert tuple(RECORDS) == records
    assert records != RECORDS[:2]
    assert (len(records), records[-1], records[1:]) == (3, RECORDS[2], tuple(RECORDS[1:]))
    assert msgspec.json.encode(list(records)) == msgspec.json.encode(RECORDS)
    with pytest.raises(IndexError):
        records[3]


def test_of_two_records_on_one_episode_the_last_one_counts() -> None:
    records = Records(SPECS)
    records.add(record(SPECS[3], steps=1))
    records.add(record(SPECS[3], steps=2))
    assert [result.steps for result in records] == [2]
    assert [records.has(spec.key) for spec in SPECS] == [False, False, False, True]
