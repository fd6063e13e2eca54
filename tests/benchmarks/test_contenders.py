"""Contenders run their cases, and those that are given the same work do the same work."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from benchmarks.batching_work import Curve
from benchmarks.contenders import batching_device
from benchmarks.environments import EPISODE_STEPS
from benchmarks.job import Job, Measured
from benchmarks.process import run_contender
from benchmarks.scheduling import Work
from benchmarks.workload import Case, Contender
from benchmarks.workloads import NAMES, load

DEADLINE_S = 120.0
SHORT_S = 0.2


def measured(workload: str, name: str, contender: Contender | str, **smaller: Any) -> Measured:
    """The first quick case that has a contender called `name`, with a few parameters smaller."""
    for case in load(workload).cases(True):
        for each in case.contenders:
            if each.name == name:
                small = replace(case, parameters={**case.parameters, **smaller}, timeout_s=DEADLINE_S)
                return run_contender(workload, small, each, SHORT_S)
    raise AssertionError(f"{workload} has no contender {name}")


def run(workload: str, name: str, **smaller: Any) -> Measured:
    if name == "SubprocVecEnv":
        pytest.importorskip("stable_baselines3")
    return measured(workload, name, name, **smaller)


@pytest.mark.parametrize("images", [False, True])
@pytest.mark.parametrize(
    "name", ["rollout", "rollout, policy in its thread", "AsyncVectorEnv", "SubprocVecEnv"]
)
def test_every_contender_moves_small_and_large_observations(name: str, images: bool) -> None:
    seen = run("transport", name, n=2, images=images)
    assert seen.value > 0
    assert seen.value == pytest.approx(seen.extra["steps"] / seen.extra["wall_s"])
    if name.startswith("rollout"):
        assert seen.extra["steps"] == EPISODE_STEPS * seen.extra["episodes"]


@pytest.mark.metaworld
def test_all_contenders_run_the_same_meta_world_episodes() -> None:
    names = [contender.name for contender in load("metaworld").cases(True)[0].contenders]
    assert "rollout" in names
    done = {
        (seen.extra["steps"], seen.extra["successes"], seen.extra["episodes"])
        for seen in (run("metaworld", name, n=2, episodes_each=2) for name in names)
    }
    [(steps, successes, episodes)] = done
    assert episodes == 4
    assert 0 < successes <= 4
    assert steps > 4


@pytest.mark.parametrize("name", ["rollout", "lock-step, refilled", "lock-step"])
def test_nobody_is_faster_than_the_bound_of_scheduling(name: str) -> None:
    seen = run("scheduling", name, workers=3, episodes=7, speed=50.0)
    assert 0.0 < seen.value <= 1.0
    assert seen.value == pytest.approx(seen.extra["bound_s"] / seen.extra["wall_s"])


def test_the_bound_of_scheduling_knows_that_a_worker_waits_for_its_answers() -> None:
    case = {"workers": 2, "episodes": 40, "speed": 1.0, "a_s": 0.0, "b_s": 0.001}
    quick, slow = Work.of(case), Work.of({**case, "a_s": 0.1})
    assert slow.bound_s > quick.bound_s
    one = Work.of({**case, "workers": 1})
    assert one.bound_s == pytest.approx(2 * quick.bound_s)


@pytest.mark.parametrize(
    "name", ["rollout", "rollout, 10 ms wait", "lock-step", "greedy in theory", "best rule in theory"]
)
def test_nobody_is_faster_than_the_bound_of_batching(name: str) -> None:
    seen = run("batching", name, episodes=8, speed=100.0)
    assert 0.0 < seen.value <= 1.001
    if name.startswith("rollout"):
        batches = seen.extra["batches"]
        decided = sum(int(size) * count for size, count in batches.items())
        assert decided == seen.extra["demand"]["decisions"]


def test_the_device_part_of_batching_runs_on_the_cpu_too() -> None:
    case = {"device": "cpu", "small": True, "cores": 2, "simulators": 4, "episodes": 6, "rule": "greedy"}
    seen = batching_device.measure(Job("batching", case, SHORT_S))
    assert 0.0 < seen.value <= 1.0
    assert Curve(**seen.extra["curve"])(2) > 0.0
    assert sum(size * count for size, count in seen.extra["batches"].items()) == seen.extra["decisions"]


@pytest.mark.parametrize("what", ["until it is imported", "until 16 no-op environments have stepped"])
def test_start_up_is_measured_of_ours_and_of_gymnasium(what: str) -> None:
    [case] = [case for case in load("start-up").cases(True) if case.name == what]
    small = replace(case, parameters={**case.parameters, "n": 2}, timeout_s=DEADLINE_S)
    for contender in case.contenders[:2]:
        assert 0.0 < run_contender("start-up", small, contender, SHORT_S).value < DEADLINE_S


@pytest.mark.parametrize("name", ["rollout", "AsyncVectorEnv"])
def test_memory_is_read_of_every_worker(name: str) -> None:
    seen = run("memory", name, n=2)
    assert len(seen.extra["pss_each_mb"]) == 2
    assert 1.0 < seen.extra["uss_mb"] <= seen.value < 1000.0


def test_the_display_is_measured_on_a_terminal() -> None:
    seen = run("display", "rollout", pairs=2, seconds=0.2)
    assert len(seen.extra["ratios"]) == len(seen.extra["steps_per_s"]["live"]) == 2
    assert 0.1 < seen.value < 10.0


@pytest.mark.parametrize("name", NAMES)
def test_the_cases_of_a_workload_are_complete(name: str) -> None:
    workload = load(name)
    assert workload.name == name
    for quick in (True, False):
        cases = workload.cases(quick)
        assert cases
        assert len({case.name for case in cases}) == len(cases)
        for case in cases:
            _check(case)


def _check(case: Case) -> None:
    names = [contender.name for contender in case.contenders]
    assert len(set(names)) == len(names)
    for ratio in case.ratios:
        assert {ratio.of, ratio.over} - {None} <= set(names)
    assert not any("|" in text for text in (case.name, case.unit, *names))  # they stand in a table
