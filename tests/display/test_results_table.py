"""The final table."""

from __future__ import annotations

import io
import re

import pytest

from rollout.display.table import print_summary
from rollout.display.terminal import Terminal
from rollout.results.efficiency import Bound, Efficiency, Limit
from rollout.results.summary import Timing, summarize
from rollout.types import Outcome

TIMING = Timing(
    wall_s=83.2,
    episodes_per_s=1.2,
    steps_per_s=1234.0,
    decisions=1000,
    steps=5000,
    mean_batch=7.9,
    policy_busy=0.35,
    worker_utilisation=0.8,
    bound_by=Limit.POLICY,
)
BOUND = Bound(
    seconds=77.4,
    by=Limit.POLICY,
    start_up_s=0.4,
    cores_s=30.0,
    policy_s=77.0,
    longest_episode_s=9.0,
    workers_s=60.0,
    cores=2,
    best_batch=8,
    cpu_s={},
)
EFFICIENCY = Efficiency(bound=BOUND, eta=0.93)


@pytest.fixture
def printed(make, monkeypatch):
    """The table's lines for {(suite, task): outcomes by letter}, on a terminal of some width or in a file."""
    monkeypatch.setenv("NO_COLOR", "1")
    letters = {"s": Outcome.SUCCESS, "f": Outcome.FAILURE, "e": Outcome.ERROR, "u": Outcome.UNKNOWN}

    def lines(tasks, *, width=None, planned=None, timing=None, instructions=None, efficiency=None):
        results = [
            make.result(suite=suite, task=task, task_id=index, episode=episode, outcome=letters[letter])
            for index, ((suite, task), outcomes) in enumerate(tasks.items())
            for episode, letter in enumerate(outcomes)
        ]
        stream = io.StringIO()
        console = Terminal(stream, force_terminal=width is not None, width=width or 80)
        summary = summarize(results, planned or len(results), instructions, timing, efficiency=efficiency)
        print_summary(summary, console)
        return re.sub(r"\x1b\[[\d;]*m", "", stream.getvalue()).splitlines()

    return lines


def test_each_task_and_all_of_them_have_rate_interval_steps_and_return(printed):
    assert printed({("mt10", "reach-v3"): "sss", ("mt10", "push-v3"): "sf"}) == [
        "",
        "  task         success     rate       95 % CI  steps  return",
        "0 reach-v3         3/3  100.0 %  43.9–100.0 %   60.0    12.5",
        "1 push-v3          1/2   50.0 %    9.5–90.5 %   60.0    12.5",
        "  all 2 tasks      4/5   80.0 %   37.6–96.4 %   60.0    12.5",
    ]


def test_a_single_task_needs_no_total(printed):
    assert len(printed({("mt10", "reach-v3"): "sss"})) == 3


def test_errors_have_a_column_and_a_sentence_and_enter_no_rate(printed):
    lines = printed({("mt10", "reach-v3"): "see", ("mt10", "push-v3"): "s"})
    assert lines[2].split()[2:5] == ["1/1", "100.0", "%"]
    assert lines[1].split()[-3:] == ["errors", "steps", "return"]
    assert lines[2].split()[-3] == "2"
    assert lines[-1] == (
        "2 episodes could not be measured and count in no rate, which would be between 50 % and 100 % with them"
    )


@pytest.mark.parametrize(
    ("outcomes", "said"),
    [
        (
            "sffe",
            "1 episode could not be measured and counts in no rate, which would be between 25 % and 50 % with it",
        ),
        (
            "f" * 399 + "e",
            "1 episode could not be measured and counts in no rate, which would be between 0 % and 1 % with it",
        ),
        ("uue", "1 episode could not be measured and counts in no mean"),
        ("ee", "no episode could be measured: there is no result"),
    ],
)
def test_it_is_said_what_the_errors_do_to_the_number(printed, outcomes, said):
    assert printed({("mt10", "reach-v3"): outcomes})[-1] == said


def test_without_a_success_signal_there_are_no_rates_but_returns(printed):
    assert printed({("gym:CartPole-v1", "CartPole-v1"): "uuuu"})[1:] == [
        "  task         episodes  steps  return",
        "0 CartPole-v1         4   60.0    12.5",
    ]


def test_several_suites_have_a_row_each_above_their_tasks(printed):
    lines = printed({("mt10", "reach-v3"): "sf", ("ml10", "push-v3"): "ss", ("ml10", "pull-v3"): "uu"})
    assert [line.split("  ")[0].strip() or line.split("  ")[1].strip() for line in lines[2:]] == [
        "ml10",
        "1 push-v3",
        "2 pull-v3",
        "mt10",
        "0 reach-v3",
        "all 3 tasks",
    ]
    assert next(line for line in lines if "pull" in line).split()[2:4] == ["2", "–"]


def test_rows_fit_a_narrow_terminal_and_names_can_be_told_apart(printed):
    said = [
        f"pick up the black bowl next to the {what} and place it on the plate"
        for what in ("ramekin", "cookie box")
    ]
    tasks = {("libero:spatial", instruction.replace(" ", "_")): "sfe" * 20 for instruction in said}
    instructions = {("libero:spatial", index): instruction for index, instruction in enumerate(said)}
    lines = printed(tasks, width=80, instructions=instructions)
    assert max(map(len, lines)) <= 80
    assert [line[:16] for line in lines[2:4]] == ["0 …ramekin and p", "1 …cookie box an"]
    assert (
        "pick up the black bowl next to the ramekin and place it on the plate"
        in printed(tasks, instructions=instructions)[2]
    )


def test_columns_of_least_interest_give_way_to_names(printed):
    tasks = {("mt50", "button-press-topdown-wall-v3"): "sfe", ("mt50", "reach-v3"): "u"}
    heads = [printed(tasks, width=width)[1].split()[1:] for width in (110, 84, 70)]
    assert heads[0] == ["episodes", "success", "rate", "95", "%", "CI", "errors", "steps", "return"]
    assert heads[1] == heads[0][:-1]
    assert heads[2] == heads[0][:-2]


def test_the_end_says_what_the_run_took_and_what_it_left(printed):
    lines = printed({("mt10", "reach-v3"): "ss"}, planned=5, timing=TIMING, efficiency=EFFICIENCY)
    assert lines[-3:] == [
        "1 min 23 s: 1.2 episodes/s, 1,234 steps/s, mean batch 7.9, policy 35 % busy",
        "η 93 %: 1 min 17 s at best, bound by the policy: larger batches or --dtype bf16",
        "incomplete: 3 episodes of 5 not run",
    ]


def test_a_run_without_a_single_record_prints_no_table(printed):
    assert printed({}, planned=5) == ["", "incomplete: 5 episodes of 5 not run"]
