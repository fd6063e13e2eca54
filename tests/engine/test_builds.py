"""When a task, and when a whole suite, is given up because it cannot be built."""

from __future__ import annotations

from rollout.engine.builds import Builds

TASKS = [("s", task_id) for task_id in range(5)]
OTHER = ("t", 0)


def test_a_constructor_that_raises_is_not_tried_again() -> None:
    builds = Builds(TASKS)
    builds.raised(TASKS[0], "ImportError: a")
    assert builds.hopeless(TASKS[0]) == (TASKS[0],)
    assert not builds.hopeless(TASKS[1])


def test_a_constructor_that_raises_where_another_workers_did_not_gives_nothing_up() -> None:
    builds = Builds(TASKS)
    builds.began(TASKS[0])
    builds.ended(TASKS[0], built=True)
    builds.raised(TASKS[0], "RuntimeError: no GL context left")
    assert not builds.hopeless(TASKS[0])


def test_deaths_while_building_give_a_task_up_once_two_episodes_have_used_up_their_attempts() -> None:
    builds = Builds(TASKS)
    builds.exhausted(TASKS[0], "WorkerDied")
    assert not builds.hopeless(TASKS[0])
    builds.exhausted(TASKS[0], "WorkerDied")
    assert builds.hopeless(TASKS[0])


def test_a_task_that_another_worker_could_build_after_all_is_given_another_chance() -> None:
    builds = Builds(TASKS)
    for _ in range(2):
        builds.exhausted(TASKS[0], "WorkerDied")
    builds.began(TASKS[0])
    builds.ended(TASKS[0], built=True)
    assert not builds.hopeless(TASKS[0])


def test_a_suite_is_given_up_when_several_of_its_tasks_fail_alike_and_none_was_built() -> None:
    builds = Builds([*TASKS, OTHER])
    for key in TASKS[:2]:
        builds.raised(key, "ImportError: libEGL")
        assert builds.hopeless(key) == (key,)
    builds.raised(TASKS[2], "ImportError: libEGL")
    assert set(builds.hopeless(TASKS[2])) == set(TASKS)  # and not the other suite
    assert not builds.hopeless(OTHER)


def test_tasks_that_fail_in_different_ways_are_not_the_installations_fault() -> None:
    builds = Builds(TASKS)
    for key in TASKS[:4]:
        builds.raised(key, f"ValueError: asset {key[1]} is missing")
    assert builds.hopeless(TASKS[3]) == (TASKS[3],)


def test_a_task_that_is_built_or_being_built_keeps_the_others_going() -> None:
    builds = Builds(TASKS)
    builds.began(TASKS[4])
    for key in TASKS[:4]:
        builds.raised(key, "ImportError: libEGL")
    assert builds.hopeless(TASKS[3]) == (TASKS[3],)
    builds.ended(TASKS[4], built=True)
    assert builds.hopeless(TASKS[3]) == (TASKS[3],)


def test_of_a_suite_with_one_task_its_failure_is_the_suites() -> None:
    builds = Builds([OTHER])
    builds.raised(OTHER, "ImportError: a")
    assert set(builds.hopeless(OTHER)) == {OTHER}
