"""What binds a run, in words, and what to do about it."""

from __future__ import annotations

import io
import json

import pytest

from rollout.display.base import WorkerState
from rollout.display.json import JsonDisplay
from rollout.display.limits import bound_by, remedy
from rollout.display.plain import progress_line
from rollout.display.rates import Rates
from rollout.results.efficiency import Limit


def rates(limit: Limit | None) -> Rates:
    return Rates(steps_per_s=50.0, decisions_per_s=5.0, mean_batch=1.0, policy_busy=0.1, bound=limit)


@pytest.mark.parametrize(
    ("limit", "told"),
    [
        (Limit.SIMULATORS, "bound by the simulators: more cores"),
        (Limit.POLICY, "bound by the policy: larger batches or --dtype bf16"),
        (Limit.WORKERS, "bound by the workers: more --workers"),
        (Limit.LONGEST, "waiting for the last episodes"),
        (Limit.START_UP, "building simulators"),
        (None, "50 steps/s"),
    ],
)
def test_a_line_says_what_binds_now_and_what_helps(make, limit, told):
    counters = make.counters()
    counters.steps, counters.most_steps = 100, 1000
    line = progress_line(counters, rates(limit), 4.0)
    assert (
        line
        == f"[    4.0 s] 0/12 episodes  50 steps/s{'' if limit is None else f'  {told}'}  eta at most 36 s"
    )


@pytest.mark.parametrize("limit", Limit)
def test_every_limit_of_a_whole_run_has_words(limit):
    assert bound_by(limit).startswith("bound by the ")
    assert remedy(limit) is None or len(remedy(limit)) < 40


def test_programs_get_the_same(make):
    stream, counters = io.StringIO(), make.counters()
    display = JsonDisplay(stream)
    display.start(make.plan(), counters)
    counters.workers = [WorkerState.BUILDING] * 2
    display.refresh()
    counters.workers, counters.policy_busy_s = [WorkerState.WAITING] * 2, 1e6
    display.refresh()
    building, waiting = [json.loads(line) for line in stream.getvalue().splitlines()[1:]]
    assert (building["bound"], building["advice"]) == ("start-up", None)
    assert (waiting["bound"], waiting["advice"]) == ("policy", remedy(Limit.POLICY))
