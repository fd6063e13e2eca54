"""What `summary.json` says of a run's speed, for runs of which it is known what binds them."""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
import pytest

import rollout
from rollout.errors import PolicyError
from rollout.resources import usable_cores
from rollout.results.efficiency import Limit, Shares
from rollout.results.summary import SUMMARY, Summary

SLEEPS, COMPUTES = "gym:paced:paced/Sleeps-v0", "gym:paced:paced/Computes-v0"
NOISE = 0.02  # of an eta: two clocks


class Takes:
    """A policy whose forward takes `seconds`, whatever the batch; it fails at its `fails_at`-th decision."""

    spec = rollout.PolicySpec(observation_keys=())

    def __init__(self, seconds: float, fails_at: int | None = None) -> None:
        self._seconds, self._fails_at, self._decisions = seconds, fails_at, 0

    def open_session(self, episode: Any, task: Any) -> Any:
        return None

    def infer(self, requests: Sequence[rollout.Request]) -> Sequence[Any]:
        self._decisions += len(requests)
        if self._fails_at is not None and self._decisions >= self._fails_at:
            raise ValueError("no more")
        time.sleep(self._seconds)
        return [[[0.0]] for _ in requests]


def checked(summary: Summary) -> Summary:
    """What holds of every run in which something was measured."""
    assert summary.timing is not None
    assert summary.bound is not None
    assert summary.eta is not None
    assert summary.shares is not None
    bound, wall_s = summary.bound, summary.timing.wall_s
    largest = max(bound.cores_s, bound.policy_s, bound.longest_episode_s)
    assert bound.seconds == pytest.approx(bound.start_up_s + largest)
    assert summary.eta == pytest.approx(bound.seconds / wall_s)
    assert 0 < summary.eta <= 1 + NOISE
    assert summary.timing.bound_by is bound.by
    assert_shares(summary.shares)
    return summary


def assert_shares(shares: Shares) -> None:
    values = msgspec.structs.asdict(shares)
    assert all(0 <= value <= 1 for value in values.values())
    assert sum(values.values()) - shares.policy == pytest.approx(1.0)


def run(policy: Any, target: str, **settings: Any) -> Summary:
    return checked(rollout.run(policy, target, display="none", **settings).summary)


def test_where_simulators_sleep_the_number_of_workers_binds() -> None:
    summary = run("zero", SLEEPS, episodes=32, workers=4)
    assert summary.bound is not None
    assert summary.shares is not None
    assert summary.bound.by is Limit.WORKERS
    assert summary.bound.workers_s > summary.bound.seconds - summary.bound.start_up_s
    assert summary.bound.cpu_s["simulate"] < 0.5 * 32 * 20 * 0.02
    assert summary.shares.simulate > 4 * summary.shares.wait


def test_where_simulators_compute_the_cores_bind_whatever_else_runs_on_them() -> None:
    workers = 2 * usable_cores()
    summary = run("zero", COMPUTES, episodes=4 * workers, workers=workers, options={"step_s": "0.01"})
    assert summary.bound is not None
    assert summary.bound.by is Limit.SIMULATORS
    assert summary.bound.cpu_s["simulate"] == pytest.approx(4 * workers * 20 * 0.01, rel=0.2)


def test_a_slow_policy_binds() -> None:
    summary = run(Takes(0.05), SLEEPS, episodes=8, workers=4, options={"step_s": "0.001"})
    assert summary.bound is not None
    assert summary.shares is not None
    assert summary.bound.by is Limit.POLICY
    best = summary.bound.best_batch
    assert best is not None
    assert summary.bound.policy_s == pytest.approx(8 * 20 * 0.05 / best, rel=0.2)
    assert summary.shares.wait > 0.5 * (1 - summary.shares.idle - summary.shares.build)
    assert summary.shares.policy > 0.5


def test_one_long_episode_binds() -> None:
    summary = run("zero", SLEEPS, episodes=8, workers=8, options={"first": "200", "steps": "2"})
    assert summary.bound is not None
    assert summary.shares is not None
    assert summary.bound.by is Limit.LONGEST
    assert summary.bound.longest_episode_s == pytest.approx(200 * 0.02, rel=0.3)
    assert summary.shares.idle > 0.5


def test_one_worker_in_this_process_is_measured_as_any_other() -> None:
    summary = run(Takes(0.01), SLEEPS, episodes=4, workers=0, options={"step_s": "0.01"})
    assert summary.bound is not None
    assert summary.shares is not None
    assert summary.bound.by is Limit.WORKERS
    assert summary.shares.wait > 0.2
    assert summary.shares.simulate > 0.2


def test_meta_world_with_its_experts() -> None:
    pytest.importorskip("metaworld")
    summary = run("expert", "metaworld:mt10", tasks=(0, 1, 2), episodes=2, workers=2)
    assert summary.bound is not None
    assert summary.shares is not None
    assert summary.bound.by in (Limit.SIMULATORS, Limit.START_UP)
    assert summary.bound.cpu_s["build"] > 0
    assert summary.shares.build > 0


class Looks(Takes):
    spec = rollout.PolicySpec(observation_keys=("observation.images.corner2",))

    def infer(self, requests: Sequence[rollout.Request]) -> Sequence[Any]:
        return [[[0.0] * 4] for _ in requests]


def test_pictures_are_told_apart_from_the_physics() -> None:
    pytest.importorskip("metaworld")
    small = {"width": "64", "height": "64"}
    summary = run(Looks(0.0), "metaworld:reach-v3", episodes=1, workers=1, horizon=20, options=small)
    assert summary.bound is not None
    assert summary.shares is not None
    assert summary.bound.cpu_s["render"] > 0
    assert summary.shares.render > 0
    assert summary.shares.simulate > 0


def test_a_run_that_was_ended_early_is_judged_by_what_it_measured(tmp_path: Path) -> None:
    with pytest.raises(PolicyError):
        rollout.run(Takes(0.001, fails_at=60), SLEEPS, episodes=8, workers=2, out=tmp_path, display="none")
    summary = checked(msgspec.json.decode((tmp_path / SUMMARY).read_bytes(), type=Summary))
    assert summary.overall.n_episodes == 2
    assert not summary.complete


def test_before_an_episode_has_ended_there_is_no_bound(tmp_path: Path) -> None:
    with pytest.raises(PolicyError):
        rollout.run(Takes(0.0, fails_at=5), SLEEPS, episodes=2, workers=1, out=tmp_path, display="none")
    data = json.loads((tmp_path / SUMMARY).read_text())
    assert (data["bound"], data["eta"]) == (None, None)
    assert_shares(msgspec.convert(data["shares"], Shares))


def test_a_resumed_run_is_judged_by_its_own_part_and_has_nothing_to_say_of_none(tmp_path: Path) -> None:
    settings: dict[str, Any] = {"episodes": 4, "workers": 1, "out": tmp_path, "display": "none"}
    with pytest.raises(PolicyError):
        rollout.run(Takes(0.0, fails_at=65), SLEEPS, **settings)
    rest = checked(rollout.run(Takes(0.0), SLEEPS, resume=True, **settings).summary)
    assert rest.overall.n_episodes == 4
    assert rest.bound is not None
    assert rest.bound.workers_s == pytest.approx(20 * 0.02, rel=0.5)
    none = rollout.run(Takes(0.0), SLEEPS, resume=True, **settings).summary
    assert (none.bound, none.eta, none.shares) == (None, None, None)
    assert none.complete
