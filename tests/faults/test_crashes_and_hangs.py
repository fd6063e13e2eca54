"""Environments that raise, crash, hang, or leave things behind (`badenvs`, "crashes" and "hangs")."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from misbehaving import Acting, assert_others_succeed, column, errors, logged, measure
from rollout import Request


@pytest.mark.parametrize("at", [1, 7])
def test_an_exception_is_that_episodes_error_and_no_stale_success(at: int) -> None:
    report = measure("RaiseAtStep", options={"at": str(at)})
    assert_others_succeed(report)
    assert errors(report)[5] == f"RuntimeError: simulator exploded at step {at} of episode 5"
    assert column(report, "steps") == [10, 0, 10, 10, 10, 0]
    assert [episode.attempts for episode in report.episodes] == [1] * 6


@pytest.mark.parametrize(("mode", "name"), [("segv", "SIGSEGV"), ("abort", "SIGABRT")])
def test_a_crash_names_its_signal_and_costs_its_own_episode_alone(mode: str, name: str) -> None:
    report = measure("Segfault", options={"mode": mode}, retries=1)
    assert_others_succeed(report)
    assert all(text.startswith("WorkerDied") and name in text for text in errors(report).values())
    assert [episode.attempts for episode in report.episodes if episode.error] == [2, 2]


def test_a_kill_asks_whether_memory_ran_out() -> None:
    report = measure("OOMKilled", retries=0)
    assert_others_succeed(report)
    assert all("SIGKILL" in text and "out of memory?" in text for text in errors(report).values())


@pytest.mark.parametrize(
    ("mode", "told"),
    [
        ("multiarg", "_MultiArgError: 17: gripper jammed"),
        ("lock", "RuntimeError: holds a lock"),
        ("bad_str", "_BadStrError: (its message could not be made: str() of the exception raised)"),
        ("local", "Local: local class"),
        ("group", "ExceptionGroup: several (2 sub-exceptions)"),
    ],
)
def test_an_exception_of_any_kind_is_told_as_far_as_it_can_be(mode: str, told: str) -> None:
    report = measure("UnpicklableError", options={"mode": mode})
    assert_others_succeed(report)
    assert errors(report) == {1: told, 5: told}
    assert "badenvs.py" in next(episode.error.traceback for episode in report.episodes if episode.error)


def test_a_constructor_that_raises_is_an_error_of_every_episode() -> None:
    report = measure("InitFails")
    told = "ImportError: libEGL.so.1: cannot open shared object file"
    assert errors(report) == dict.fromkeys(range(6), told)
    assert report.success_rate is None


def test_a_constructor_that_hangs_ends_at_the_reset_timeout() -> None:
    report = measure("InitFails", options={"mode": "hang"}, reset_timeout_s=1, retries=0, episodes=2)
    assert sorted(errors(report)) == [0, 1]
    assert all(text.startswith("WorkerTimeout") for text in errors(report).values())


@pytest.mark.parametrize("mode", ["raise", "hang"])
def test_a_close_that_misbehaves_costs_no_score(mode: str) -> None:
    report = measure("CloseMisbehaves", options={"mode": mode})
    assert (errors(report), report.success_rate, set(column(report, "steps"))) == ({}, 1.0, {2})


def test_no_simulator_is_made_in_the_parent(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BADENVS_PARENT_PID", str(os.getpid()))
    report = measure("NotInParent")
    assert (errors(report), report.summary.overall.n_failure) == ({}, 6)


def test_no_child_of_a_simulator_outlives_the_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log = tmp_path / "log"
    monkeypatch.setenv("BADENVS_LOG", str(log))
    report = measure("SpawnsChildren")
    assert report.success_rate == 1.0
    children = [line["child"] for line in logged(log, "child")]
    assert len(children) == 4  # two of each worker
    deadline = time.monotonic() + 10
    while alive := [pid for pid in children if runs(pid)]:
        assert time.monotonic() < deadline, f"still alive: {alive}"
        time.sleep(0.05)


def runs(pid: int) -> bool:
    try:
        return b") Z " not in Path(f"/proc/{pid}/stat").read_bytes()
    except (FileNotFoundError, ProcessLookupError):
        return False


@pytest.mark.parametrize(
    ("options", "limits"),
    [
        ({}, {"step_timeout_s": 1}),
        ({"stubborn": "true"}, {"step_timeout_s": 1}),
        ({"gil": "true"}, {"step_timeout_s": 1}),
        ({"where": "reset"}, {"reset_timeout_s": 1.5}),
    ],
)
def test_whoever_blocks_for_ever_is_killed_and_named(
    options: dict[str, str], limits: dict[str, float]
) -> None:
    report = measure("SleepForever", options=options, retries=0, **limits)
    assert_others_succeed(report)
    assert all(text.startswith("WorkerTimeout") for text in errors(report).values())


def test_floods_on_the_standard_streams_hang_nothing_and_mix_into_nothing() -> None:
    report = measure("FloodStdout", options={"kb": "2048"})
    assert (errors(report), report.success_rate, set(column(report, "steps"))) == ({}, 1.0, {5})


def test_a_question_on_the_terminal_meets_the_end_of_a_file() -> None:
    assert errors(measure("AsksInput", episodes=2)) == dict.fromkeys(
        (0, 1), "EOFError: EOF when reading a line"
    )


def test_a_question_meets_the_end_of_a_file_where_the_engine_itself_has_no_stdin() -> None:
    command = (
        "gym:badenvs:bad/AsksInput-v0 --policy zero --episodes 2 --workers 1 --horizon 5 --display plain"
    )
    shell = f'{sys.executable} -c "from rollout.cli import main; main()" run {command} <&-'
    folder = str(Path(__file__).parents[1])
    done = subprocess.run(
        ["bash", "-c", shell],
        env=os.environ | {"PYTHONPATH": folder},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 1, done.stderr
    assert "EOFError: EOF when reading a line" in done.stdout


def test_messages_larger_than_any_pipe_arrive_whole_both_ways() -> None:
    import zlib

    import numpy as np

    sent: dict[int, list[int]] = {}

    def act(request: Request) -> np.ndarray:
        generator = np.random.default_rng(request.noise_seed)
        action = generator.uniform(-1, 1, (1, request.task.action_space.shape[0])).astype(np.float32)
        sent.setdefault(request.episode.episode, []).append(zlib.crc32(action.tobytes()))
        image = request.observation["observation.state"]
        assert (image.shape, image[0, 0, 0], image[-1, -1, -1]) == (
            (24, 1024, 1024),
            request.step,
            255 - request.step,
        )
        return action

    # The sibling's reward is the checksum of the action that arrived.
    report = measure("sib/CheckedMessages", Acting(act), episodes=2)
    assert (errors(report), report.success_rate) == ({}, 1.0)
    assert column(report, "sum_reward") == [float(sum(sent[episode])) for episode in (0, 1)]
