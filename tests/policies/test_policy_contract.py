"""The contract for policies: what is shipped keeps it, and each broken promise is caught by the test named after it."""

from __future__ import annotations

from typing import ClassVar

import pytest

from rollout.testing import PolicyContract

TOY = "gym:toys:toy/Count-v0"
TESTS = [name for name in dir(PolicyContract) if name.startswith("test_")]
CAUGHT = [
    ("Noisy", "test_the_same_request_gives_the_same_chunk", "made anew, decision 0 of episode 0"),
    ("Remembering", "test_an_episode_after_others_gets_the_same_chunks", "decision 0"),
    ("Averaging", "test_what_shares_the_batch_changes_no_chunk", "decision 0"),
    ("Favouring", "test_the_order_of_a_batch_changes_no_chunk", "decision 0"),
    ("Noisy", "test_the_engine_gets_the_same_episodes_whatever_it_runs_them_with", "other episodes"),
    ("Overwriting", "test_observations_are_left_as_they_are", "observation.state"),
    ("Miscounting", "test_every_request_gets_one_chunk_that_can_be_executed", "chunk"),
    ("Misshapen", "test_chunks_have_the_action_spaces_shape_and_numbers_that_it_can_take", r"\(2, 3\)"),
    ("Worded", "test_chunks_have_the_action_spaces_shape_and_numbers_that_it_can_take", "is of <U5"),
    ("Short", "test_chunks_are_as_long_as_the_spec_says", "1 actions; chunk_size: 2"),
    ("Undefined", "test_every_action_is_finite", "decision 2 of episode 0 is not finite"),
    ("Ageing", "test_episodes_of_other_ages_in_the_batch_change_no_chunk", "began earlier"),
    ("Specless", "test_the_spec_can_be_run", "spec is"),
]


class TestRandom(PolicyContract):
    policy = "random"
    target = "gym:toys:toy/Echo-v0"
    options: ClassVar = {"space": "dict"}


class TestSound(PolicyContract):
    policy = "broken_policies:Sound"
    target = TOY


class TestModule(PolicyContract):
    policy = "broken_policies:module"
    target = TOY


@pytest.mark.metaworld
class TestExpert(PolicyContract):
    policy = "expert"
    target = "metaworld:reach-v3"


def test_every_promise_is_broken_once() -> None:
    assert {test for _, test, _ in CAUGHT} == set(TESTS)


@pytest.mark.parametrize(("name", "test", "message"), CAUGHT)
def test_a_broken_promise_is_caught(name: str, test: str, message: str) -> None:
    class Contract(PolicyContract):
        policy = f"broken_policies:{name}"
        target = TOY

    with pytest.raises(Exception, match=message):
        getattr(Contract(), test)()
