"""The scheduler's promises, without a process or a loop."""

from __future__ import annotations

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from rollout.engine.scheduler import Costs, Scheduler
from rollout.types import EpisodeSpec


def specs(counts: dict[str, int], horizon: int = 100) -> list[EpisodeSpec]:
    return [
        EpisodeSpec(suite="s", task=task, task_id=task_id, episode=episode, seed=episode, horizon=horizon)
        for task_id, (task, count) in enumerate(counts.items())
        for episode in range(count)
    ]


def holds(spec: EpisodeSpec | None) -> tuple[str, int] | None:
    return None if spec is None else (spec.suite, spec.task_id)


@given(
    counts=st.lists(st.integers(0, 5), max_size=6),
    choices=st.lists(st.tuples(st.integers(0, 3), st.sampled_from(["done", "died", "slow"])), max_size=200),
)
def test_every_spec_is_measured_exactly_once_whatever_the_order_and_the_deaths(
    counts: list[int], choices: list[tuple[int, str]]
) -> None:
    plan = specs({f"t{i}": count for i, count in enumerate(counts)})
    scheduler = Scheduler(plan)
    running: dict[int, EpisodeSpec] = {}
    built: dict[int, tuple[str, int] | None] = {}
    measured: Counter[tuple[int, int]] = Counter()

    def finish(worker: int) -> None:
        spec = running.pop(worker)
        scheduler.measured((spec.suite, spec.task_id), 1.0, 0.5)
        measured[spec.task_id, spec.episode] += 1

    def refill(worker: int) -> None:
        spec = scheduler.next(worker, built.get(worker))
        if spec is not None:
            running[worker], built[worker] = spec, holds(spec)

    for worker, what in choices:
        if worker not in running:
            refill(worker)
        elif what == "died":
            built[worker] = None  # its simulator is gone; the episode is tried again where it is
        elif what == "done":
            finish(worker)
    while True:  # everybody goes on until nothing is left
        for worker in list(running):
            finish(worker)
        for worker in range(4):
            refill(worker)
        if not running:
            break
    assert measured == Counter({(spec.task_id, spec.episode): 1 for spec in plan})
    assert len(scheduler) == 0


def test_a_worker_stays_with_the_task_that_it_has_built() -> None:
    scheduler = Scheduler(specs({"a": 3, "b": 3}))
    first = scheduler.next(0)
    assert first is not None
    following = [scheduler.next(0, holds(first)) for _ in range(2)]
    assert [spec.task for spec in following if spec] == [first.task, first.task]


def test_idle_workers_start_different_tasks_before_they_share_one() -> None:
    scheduler = Scheduler(specs({"a": 5, "b": 5, "c": 5}))
    tasks = [spec.task for worker in range(3) if (spec := scheduler.next(worker)) is not None]
    assert sorted(tasks) == ["a", "b", "c"]


def test_the_longest_task_starts_first() -> None:
    plan = specs({"short": 2}, horizon=10) + [
        EpisodeSpec(suite="s", task="long", task_id=9, episode=e, seed=e, horizon=500) for e in range(2)
    ]
    first = Scheduler(plan).next(0)
    assert first is not None
    assert first.task == "long"


def test_a_task_is_joined_when_that_ends_the_run_sooner() -> None:
    scheduler = Scheduler(specs({"a": 10}))
    first = scheduler.next(0)
    assert first is not None
    scheduler.measured(
        ("s", 0), episode_s=1.0, build_s=3.0
    )  # nine seconds of work left: worth three of building
    assert scheduler.next(1) is not None


def test_a_task_is_not_joined_where_building_takes_longer_than_its_owner_needs() -> None:
    scheduler = Scheduler(specs({"a": 3}))
    first = scheduler.next(0)
    scheduler.measured(("s", 0), episode_s=1.0, build_s=10.0)
    assert scheduler.next(1) is None
    assert scheduler.next(0, holds(first)) is not None  # the owner goes on


def test_a_worker_that_lost_its_simulator_goes_on_with_the_task_if_nobody_else_does() -> None:
    scheduler = Scheduler(specs({"a": 2}))
    assert scheduler.next(0) is not None
    scheduler.measured(("s", 0), episode_s=1.0, build_s=100.0)
    assert scheduler.next(0, None) is not None


def test_before_anything_is_measured_a_task_is_shared_only_where_the_family_says_that_it_is_worth_it() -> (
    None
):
    for build_s, shared in ((1.0, True), (20.0, False)):
        scheduler = Scheduler(specs({"a": 5}), {"s": Costs(build_s=build_s, step_s=0.01)})
        assert scheduler.next(0) is not None
        assert (scheduler.next(1) is not None) is shared


def test_a_worker_that_was_not_needed_is_once_the_rest_proves_long() -> None:
    scheduler = Scheduler(specs({"a": 5}), {"s": Costs(build_s=5.0, step_s=0.01)})
    first = scheduler.next(0)
    assert scheduler.next(1) is None
    scheduler.measured(("s", 0), episode_s=30.0, build_s=5.0)
    assert scheduler.next(0, holds(first)) is not None
    assert scheduler.next(1) is not None


def test_what_one_task_took_is_expected_of_the_others_of_its_family() -> None:
    scheduler = Scheduler(specs({"a": 1, "b": 4}), {"s": Costs(build_s=1.0, step_s=0.001)})
    first = [scheduler.next(0), scheduler.next(1)]
    assert [spec.task for spec in first if spec] == ["b", "a"]
    assert scheduler.next(2) is None  # 0.3 s are left
    scheduler.measured(("s", 0), episode_s=10.0, build_s=1.0)
    assert holds(scheduler.next(1, ("s", 0))) == ("s", 1)


def test_dropping_a_task_hands_back_what_was_left_of_it() -> None:
    scheduler = Scheduler(specs({"a": 4, "b": 1}))
    scheduler.next(0)
    dropped = [spec.episode for key in (("s", 0), ("s", 1)) for spec in scheduler.drop(key)]
    assert len(dropped) == 4
    assert scheduler.next(0) is None
