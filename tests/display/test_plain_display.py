"""Plain lines: what a log shows."""

from __future__ import annotations

import io

import pytest

from rollout.display.base import Counters, WorkerState
from rollout.display.plain import PlainDisplay, progress_line


class Clock:
    now_s = 1000.0

    def __call__(self) -> float:
        return self.now_s


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture
def log():
    return io.StringIO()


@pytest.fixture
def plain(log, clock):
    return PlainDisplay(log, clock)


def run_for(display, clock, seconds: int) -> None:
    for _ in range(seconds):
        clock.now_s += 1.0
        display.refresh()


def test_the_first_lines_say_what_runs(make, plain, log):
    counters = make.counters(10, episodes=3)
    counters.resumed = counters.done = 4
    plain.start(make.plan(), counters)
    assert log.getvalue().splitlines() == [
        "rollout: metaworld:mt10 with policy expert",
        "30 episodes of 10 tasks (4 already recorded), 2 workers, results in runs/first",
    ]


def test_a_line_comes_after_two_seconds_and_then_every_five(make, plain, log, clock):
    plain.start(make.plan(), make.counters())
    run_for(plain, clock, 20)
    stamps = [line[:11] for line in log.getvalue().splitlines()[2:]]
    assert stamps == ["[    2.0 s]", "[    7.0 s]", "[   12.0 s]", "[   17.0 s]"]


def test_a_run_of_hours_writes_a_line_a_minute(make, plain, log, clock):
    plain.start(make.plan(), make.counters())
    run_for(plain, clock, 2 * 3600)
    before = len(log.getvalue().splitlines())
    run_for(plain, clock, 600)
    assert len(log.getvalue().splitlines()) - before == 10


def test_a_line_shows_rate_interval_errors_speed_bound_and_end(make, plain, log, clock):
    counters = make.counters(3, episodes=10)
    plain.start(make.plan(), counters)
    make.end(counters, 0, successes=6, failures=1)
    make.end(counters, 1, successes=6, failures=1, errors=1)
    counters.steps, counters.decisions, counters.batches, counters.sim_busy_s = 2468, 100, 20, 1.5
    run_for(plain, clock, 2)
    assert log.getvalue().splitlines()[-1] == (
        "[    2.0 s] 15/30 episodes  86 % success [60–96 %]  1 error  1,234 steps/s  "
        "bound by the simulators: more cores  eta 2 s"
    )


def test_before_anything_is_measured_no_rate_is_claimed(make, plain, log, clock):
    plain.start(make.plan(), make.counters())
    run_for(plain, clock, 2)
    assert log.getvalue().splitlines()[-1] == "[    2.0 s] 0/12 episodes  eta unknown"


def test_an_error_is_one_line_with_the_first_line_of_its_message(make, plain, log):
    plain.start(make.plan(), make.counters())
    plain.episode(make.result())
    plain.episode(make.error("killed by SIGKILL\nits log"))
    assert log.getvalue().splitlines()[2:] == [
        "[    0.0 s] error: metaworld:mt10 reach-v3 episode 3: WorkerDied: killed by SIGKILL"
    ]


def test_a_note_of_several_lines_stays_one_line(make, plain, log):
    plain.start(make.plan(), make.counters())
    plain.note("worker 3 died\nretrying")
    assert log.getvalue().splitlines()[2:] == ["[    0.0 s] worker 3 died retrying"]


@pytest.mark.parametrize(
    ("successes", "ending"),
    [
        (12, "12/12 episodes  100 % success [76–100 %]"),
        (6, "6/12 episodes  100 % success [61–100 %]  stopped"),
    ],
)
def test_the_last_line_says_how_far_the_run_came(make, plain, log, successes, ending):
    counters = make.counters()
    plain.start(make.plan(), counters)
    make.end(counters, 0, successes=successes)
    plain.finish()
    assert log.getvalue().splitlines()[-1] == f"[    0.0 s] {ending}"


def test_an_encoding_without_dashes_gets_question_marks_and_no_error(make):
    raw = io.BytesIO()
    log = io.TextIOWrapper(raw, encoding="ascii")
    plain, counters = PlainDisplay(log), make.counters()
    plain.start(make.plan(policy="политика"), counters)
    make.end(counters, 0, successes=1)
    plain.finish()
    assert b"with policy ????????\n" in raw.getvalue()
    assert b"[21?100 %]" in raw.getvalue()


def test_until_the_first_step_a_line_says_what_is_being_built() -> None:
    counters = Counters(planned=4, workers=[WorkerState.BUILDING, WorkerState.STARTING, WorkerState.IDLE])
    assert "2 simulators being built" in progress_line(counters, None, 7.0)
    counters.steps = 1
    assert "built" not in progress_line(counters, None, 7.0)
