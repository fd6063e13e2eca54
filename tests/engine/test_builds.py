"""When a task, and when a whole run, is given up because nothing can be built."""

from __future__ import annotations

from rollout.engine.builds import Builds
from rollout.types import EpisodeSpec

TASKS = [("s", task_id) for task_id in range(5)]


def spec(task_id: int, episode: int) -> EpisodeSpec:
    return EpisodeSpec(suite="s", task=str(task_id), task_id=task_id, episode=episode, seed=0, horizon=1)


def test_a_constructor_that_raises_is_not_tried_again() -> None:
    builds = Builds(TASKS, retries=2)
    builds.raised(TASKS[0], "ImportError")
    assert builds.hopeless(TASKS[0])
    assert not builds.hopeless(TASKS[1])
    assert not builds.common


def test_deaths_while_building_give_a_task_up_only_after_more_than_one_episodes_retries() -> None:
    builds = Builds(TASKS, retries=2)
    for _ in range(3):
        builds.died(spec(0, 0), "WorkerDied")
    assert not builds.hopeless(TASKS[0])  # the reset of that one episode may be to blame
    builds.died(spec(0, 1), "WorkerDied")
    assert builds.hopeless(TASKS[0])


def test_without_retries_two_episodes_have_to_die() -> None:
    builds = Builds(TASKS, retries=0)
    builds.died(spec(0, 0), "WorkerDied")
    assert not builds.hopeless(TASKS[0])
    builds.died(spec(0, 1), "WorkerDied")
    assert builds.hopeless(TASKS[0])


def test_a_task_that_was_built_once_is_never_given_up_for_deaths() -> None:
    builds = Builds(TASKS, retries=0)
    builds.built(TASKS[0])
    for episode in range(10):
        builds.died(spec(0, episode), "WorkerDied")
    assert not builds.hopeless(TASKS[0])


def test_the_run_is_given_up_when_several_tasks_fail_alike_and_none_was_built() -> None:
    builds = Builds(TASKS, retries=2)
    builds.raised(TASKS[0], "ImportError")
    builds.raised(TASKS[1], "ImportError")
    assert not builds.common
    builds.raised(TASKS[2], "ImportError")
    assert builds.common


def test_tasks_that_fail_in_different_ways_are_not_the_installations_fault() -> None:
    builds = Builds(TASKS, retries=2)
    for key, kind in zip(
        TASKS, ("ImportError", "ValueError", "KeyError", "OSError", "TypeError"), strict=True
    ):
        builds.raised(key, kind)
    assert not builds.common


def test_one_task_that_can_be_built_keeps_the_others_going() -> None:
    builds = Builds(TASKS, retries=2)
    builds.built(TASKS[4])
    for key in TASKS[:4]:
        builds.raised(key, "ImportError")
    assert not builds.common


def test_of_a_single_task_its_own_failure_is_the_runs() -> None:
    builds = Builds(TASKS[:1], retries=2)
    builds.raised(TASKS[0], "ImportError")
    assert builds.common
