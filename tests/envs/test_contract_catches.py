"""The contract for simulators can fail: each broken promise is caught by the test that is named after it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from broken_simulators import BUGS

from rollout.testing import SimulatorContract

TESTS = [name for name in dir(SimulatorContract) if name.startswith("test_")]
CAUGHT = [
    ("action_refused", "test_sampled_actions_are_accepted", "too fast"),
    ("any_key", "test_an_unknown_key_is_refused", "it was accepted"),
    ("any_option", "test_bad_options_are_refused", "size=\\? was accepted"),
    ("chatty", "test_only_what_was_asked_for_is_delivered", "nobody looks at"),
    ("closed_once", "test_closing_twice_is_harmless_and_the_end_silent", "closed already"),
    ("crash", "test_sampled_actions_are_accepted", "status -11"),
    ("eager_import", "test_the_constructor_imports_no_simulator_and_loads_no_gl", "wave is imported"),
    ("every_key", "test_only_what_was_asked_for_is_delivered", "was not asked for"),
    ("film_moves", "test_filming_changes_nothing_and_gives_pictures", "differ"),
    ("float_film", "test_filming_changes_nothing_and_gives_pictures", "<f8"),
    ("forgets_nothing", "test_an_episode_after_others_is_the_same", "rewards differ from step 1 on"),
    ("frozen_frame", "test_every_observation_changes_at_some_time", "images.top is always the same"),
    ("key_missing", "test_only_what_was_asked_for_is_delivered", "is missing"),
    ("leaking_rng", "test_the_same_spec_gives_the_same_episode_in_another_process", "rewards differ"),
    ("leaking_rng", "test_the_engine_gets_the_same_episodes_whatever_it_runs_them_with", "other episodes"),
    ("looking_moves", "test_looking_at_fewer_steps_changes_nothing", "differ"),
    ("loud_end", "test_closing_twice_is_harmless_and_the_end_silent", "no context any more"),
    ("no_rule", "test_success_is_told_only_where_there_is_a_rule_for_it", "success_rule is None"),
    ("numpy_flags", "test_rewards_and_endings_have_their_types", "success is .* of type bool"),
    ("other_horizon", "test_the_built_task_is_the_listed_one", "50.*40"),
    ("outside", "test_observations_are_in_their_spaces", "outside of its space"),
    ("picture_of_both", "test_a_key_asked_for_alone_has_the_same_value", "images.top differs"),
    ("read_only", "test_what_was_delivered_stays_as_it_was", "not C-ordered and writable"),
    ("reward_of_looking", "test_looking_at_fewer_steps_changes_nothing", "rewards differ from step 1 on"),
    ("shared_buffer", "test_what_was_delivered_stays_as_it_was", "overwritten later"),
    ("stale_frame", "test_looking_at_fewer_steps_changes_nothing", "images.top differs"),
    ("wrong_dtype", "test_observations_are_in_their_spaces", "<f8 .* should be <f4"),
    ("zero_horizon", "test_the_suite_lists_its_tasks", "horizon 0"),
    ("incomplete", "test_the_class_has_every_member_of_a_simulator", "render(.|\n)*worker_memory_gb"),
    ("incomplete", "test_every_name_and_alias_stands_for_suites", "gone"),
]


@pytest.fixture(autouse=True)
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What installing the families leaves behind, as far as `importlib.metadata` reads it."""
    info = tmp_path / "broken-1.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Name: broken\nVersion: 1\n")
    (info / "entry_points.txt").write_text(
        "[rollout.envs]\nbroken = broken_simulators:BrokenSimulator\n"
        "incomplete = broken_simulators:IncompleteSimulator\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))


def contract(suite: str) -> SimulatorContract:
    class Contract(SimulatorContract):
        target = suite

    return Contract()


def test_every_broken_promise_is_tried() -> None:
    assert {bug for bug, *_ in CAUGHT} == {*BUGS, "incomplete"} - {"none"}
    assert {test for _, test, _ in CAUGHT} == set(TESTS)


@pytest.mark.parametrize("test", TESTS)
def test_a_simulator_that_keeps_its_promises_passes(test: str) -> None:
    getattr(contract("broken:none"), test)()


@pytest.mark.parametrize(("bug", "test", "message"), CAUGHT)
def test_a_broken_promise_is_caught(bug: str, test: str, message: str) -> None:
    suite = "incomplete:none" if bug == "incomplete" else f"broken:{bug}"
    with pytest.raises(Exception, match=message) as raised:
        getattr(contract(suite), test)()
    assert "UsageError" in raised.typename or raised.errisinstance(AssertionError)


def interpreted(code: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False
    )


def test_without_pytest_one_line_says_what_to_install() -> None:
    done = interpreted(
        "import sys; sys.modules['pytest'] = None; from rollout.testing import SimulatorContract"
    )
    assert done.returncode == 1
    assert done.stderr.strip().endswith("ImportError: rollout.testing needs pytest; run: pip install pytest")


def test_the_process_of_a_simulator_needs_no_pytest_and_imports_no_torch() -> None:
    code = "import sys, rollout.testing.child; print({'pytest', 'torch', 'rich'} & set(sys.modules))"
    assert interpreted(code).stdout == "set()\n"
