"""More environments of the kinds that `badenvs` has: each fault's whole kind is handled, not its instance."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from misbehaving import assert_others_succeed, column, errors, measure
from rollout.envs.gymnasium_signals import flag, one_reward

REWARD, SUCCESS = "ValueError: the environment's reward", "ValueError: the environment's success"


@pytest.mark.parametrize(
    ("how", "told"),
    [
        ("reward text", f"{REWARD} is no number but '0.5'"),
        ("reward none", f"{REWARD} is no number but None"),
        ("terminated text", "ValueError: the environment's terminated is no number but 'False'"),
        (
            "terminated array",
            "ValueError: the environment's terminated has shape (3,), but must be one value",
        ),
        ("success text", f"{SUCCESS} is no number but 'yes'"),
        ("success pair", f"{SUCCESS} has shape (2,), but must be one value"),
    ],
)
def test_a_signal_that_is_no_single_value_is_an_error_that_names_it(how: str, told: str) -> None:
    report = measure("sib/Signals", options={"how": how})
    assert_others_succeed(report)
    assert errors(report) == {1: told, 5: told}


def test_a_success_without_a_truth_value_is_an_error_that_names_it() -> None:
    report = measure("sib/Success", options={"how": "?"})
    assert_others_succeed(report)
    told = "ValueError: the environment's is_success is no number but a NoTruth that cannot be printed"
    assert set(errors(report).values()) == {told}


@pytest.mark.parametrize(
    ("how", "warning"),
    [
        ("reward list", None),
        ("reward huge", "a reward is not finite"),
        ("success huge", None),
        ("info cyclic", None),
        ("info none", "the environment's info is no dict but of type NoneType: dropped"),
        ("info list", "the environment's info is no dict but of type list: dropped"),
        ("info odd", "the environment's info, of type Unreadable, cannot be read (RuntimeError): dropped"),
    ],
)
def test_whatever_an_info_or_a_reward_holds_costs_no_episode(how: str, warning: str | None) -> None:
    report = measure("sib/Signals", options={"how": how})
    assert (errors(report), report.success_rate, set(column(report, "steps"))) == ({}, 1.0, {4})
    assert len(report.summary.warnings) == (warning is not None)
    assert all(warning in text for text in report.summary.warnings if warning)
    assert column(report, "sum_reward")[1] == {"reward list": 0.5, "reward huge": None}.get(how, 0.0)


@pytest.mark.parametrize(
    ("how", "misread"),
    [
        ("none", None),
        ("list", None),
        ("odd", None),
        ("early", None),
        ("final odd", None),
        ("final array", None),
        ("final proxy", True),
    ],
)
def test_where_what_may_have_been_a_success_cannot_be_read_the_outcome_is_no_failure(
    how: str, misread: bool | None
) -> None:
    report = measure("sib/Failing", options={"how": how})
    assert (errors(report), set(column(report, "steps"))) == ({}, {4})
    assert column(report, "success") == [False, misread, False, False, False, misread]
    assert all("dropped" in text for text in report.summary.warnings)
    assert len(report.summary.warnings) == (misread is None)


@pytest.mark.parametrize("workers", [1, 2])
def test_the_final_info_of_an_episode_is_no_result_of_the_next(workers: int) -> None:
    report = measure("sib/Stale", options={"how": "?"}, workers=workers)
    assert (errors(report), report.summary.success_at_reset) == ({}, 0)
    assert column(report, "success") == [False, True, False, False, False, True]


@pytest.mark.parametrize("how", ["number", "no argument", "two arguments", "attribute", "property"])
def test_a_seed_that_is_not_the_old_method_is_let_alone(how: str) -> None:
    report = measure("sib/OtherSeed", options={"how": how}, episodes=2)
    assert (errors(report), report.success_rate) == ({}, 1.0)


@pytest.mark.parametrize(
    ("how", "what"), [("three", "a tuple of length 3"), ("list", "a list of length 2"), ("none", "None")]
)
def test_a_reset_that_returns_no_pair_is_told_what_it_returned(how: str, what: str) -> None:
    told = errors(measure("sib/Resets", options={"how": how}, episodes=1))
    assert told == {0: f"TypeError: reset() returned {what}, and not the pair (observation, info)"}


class Floating:
    """A number by its `__float__` alone."""

    def __float__(self) -> float:
        return 0.5


@pytest.mark.parametrize("value", [Floating(), torch.tensor(0.5), torch.tensor([0.5], requires_grad=True)])
def test_whatever_has_a_float_is_a_number(value: Any) -> None:
    assert (one_reward(value), flag(value, "success")) == (0.5, True)


@pytest.mark.parametrize(
    ("how", "told"),
    [
        ("interrupt", "KeyboardInterrupt: "),
        ("panic", "PanicException: index out of bounds"),
        ("generator", "GeneratorExit: "),
        ("exit text", "SystemExit: no licence"),
        ("surrogates", "RuntimeError: cannot read ?"),
        ("huge", f"RuntimeError: {'x' * 4096}"),
        ("cause of itself", "ValueError: first"),
        ("close too", "RuntimeError: broken for good"),
        ("message", "Wordy: (its message could not be made: str() of the exception raised)"),
        ("recursion", "RecursionError: maximum recursion depth exceeded"),
    ],
)
def test_whatever_is_raised_is_that_episodes_error_and_is_not_tried_again(how: str, told: str) -> None:
    report = measure("sib/Endings", options={"how": how})
    assert_others_succeed(report)
    assert all(text.startswith(told) for text in errors(report).values())
    assert set(column(report, "attempts")) == {1}


@pytest.mark.parametrize(
    ("how", "told"),
    [("exit", "exited with status 3"), ("os exit", "exited with status 0"), ("descriptors", "")],
)
def test_a_process_that_leaves_is_a_death_that_says_how(how: str, told: str) -> None:
    report = measure("sib/Endings", options={"how": how}, retries=0)
    assert_others_succeed(report)
    assert all(told in text for text in errors(report).values())


def test_a_copy_of_the_worker_that_a_simulator_forks_never_answers() -> None:
    report = measure("sib/Endings", options={"how": "fork"}, episodes=12)
    assert (errors(report), report.success_rate, set(column(report, "attempts"))) == ({}, 1.0, {1})
    assert set(column(report, "steps")) == {4}


def test_a_simulator_that_turns_its_process_upside_down_is_measured_all_the_same() -> None:
    report = measure("sib/Untidy")
    assert (errors(report), report.success_rate, set(column(report, "steps"))) == ({}, 1.0, {4})


@pytest.mark.parametrize(
    ("what", "told"),
    [
        ("action_space", "TypeError: the environment has no action_space: its constructor must set one"),
        (
            "observation_space",
            "TypeError: the environment has no observation_space: its constructor must set one",
        ),
        ("manners", "exited with status 0"),
    ],
)
def test_an_environment_that_cannot_be_made_says_what_it_lacks(what: str, told: str) -> None:
    report = measure("sib/Lacking", options={"what": what}, episodes=3, retries=0)
    assert len(errors(report)) == 3
    assert all(told in text for text in errors(report).values())
