"""Progress for machines: strict JSON, one object a line."""

from __future__ import annotations

import io
import json
import sys

import msgspec
import pytest

from rollout.display.json import JsonDisplay
from rollout.types import EpisodeResult


def refuse(constant: str) -> None:
    raise AssertionError(f"{constant} is not JSON")


def events(text: str) -> list[dict]:
    return [json.loads(line, parse_constant=refuse) for line in text.splitlines()]


@pytest.fixture
def run(make):
    """A run from its start to its end, as events."""
    stream = io.StringIO()
    display, counters = JsonDisplay(stream), make.counters(2, instruction="reach {}".format)
    display.start(make.plan(), counters)
    display.refresh()
    make.end(counters, 0, successes=2, failures=1)
    make.end(counters, 1, errors=1, unknown=1)
    counters.steps, counters.decisions, counters.batches, counters.policy_busy_s = 300, 30, 10, 1e-6
    display.note("worker 1 died")
    display.episode(make.result(sum_reward=float("nan")))
    display.finish()
    return events(stream.getvalue())


def test_events_come_in_order_and_carry_their_time(run):
    assert [event["event"] for event in run] == ["start", "progress", "note", "episode", "end"]
    assert run[0]["time_s"] == 0
    assert all(event["time_s"] >= 0 for event in run)


def test_start_names_every_task(run):
    assert run[0]["targets"] == ["metaworld:mt10"]
    assert (run[0]["policy"], run[0]["workers"], run[0]["out"]) == ("expert", 2, "runs/first")
    assert (run[0]["planned"], run[0]["resumed"]) == (8, 0)
    assert run[0]["tasks"][1] == {
        "suite": "metaworld:mt10",
        "task": "task-1-v3",
        "task_id": 1,
        "instruction": "reach 1",
        "planned": 4,
    }


def test_progress_before_anything_is_measured_has_null_for_what_is_unknown(run):
    unknown = ("success_rate", "ci95", "mean_batch", "eta_s")
    assert [run[1][name] for name in unknown] == [None] * 4
    assert run[1]["workers"] == {"stepping": 2}


def test_the_end_counts_every_outcome(run):
    end = run[-1]
    assert (end["done"], end["planned"]) == (5, 8)
    assert (end["successes"], end["failures"], end["errors"], end["unknown"]) == (2, 1, 1, 1)
    assert end["success_rate"] == pytest.approx(2 / 3)
    assert end["ci95"] == pytest.approx([0.2077, 0.9385], abs=1e-4)
    assert (end["mean_batch"], end["bound"]) == (3.0, "policy")


def test_an_episode_is_the_record_itself_and_a_number_that_is_not_finite_is_null(make, run):
    record = run[3]["record"]
    assert record["sum_reward"] is None
    assert msgspec.convert(record, EpisodeResult) == make.result(sum_reward=None)
    assert run[2]["message"] == "worker 1 died"


def test_prints_go_to_stderr_while_it_runs_so_that_stdout_stays_json(make, capsys):
    display = JsonDisplay(sys.stdout)
    display.start(make.plan(), make.counters())
    print("a policy says")
    display.refresh()
    display.finish()
    print("after")
    captured = capsys.readouterr()
    assert captured.err == "a policy says\n"
    *lines, last = captured.out.splitlines()
    assert [event["event"] for event in events("\n".join(lines))] == ["start", "progress", "end"]
    assert last == "after"


def test_a_simulators_words_reach_no_terminal_as_commands(make):
    stream, said = io.StringIO(), "\x1b[2J\x9b31m\x7f\x00\u202e é"
    display = JsonDisplay(stream)
    display.start(make.plan(out="runs/\udcff"), make.counters())
    display.note(said)
    display.episode(make.error(said))
    display.finish()
    lines = stream.getvalue().splitlines()
    assert not any(ord(character) < 32 or 127 <= ord(character) < 160 for line in lines for character in line)
    assert json.loads(lines[0])["out"] == "runs/\\udcff"  # a path that is no UTF-8
    assert json.loads(lines[1])["message"] == said
    assert json.loads(lines[2])["record"]["error"]["message"] == said
