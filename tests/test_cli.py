"""The command line as a user meets it: real processes, exit codes, what is printed where."""

from __future__ import annotations

import contextlib
import json
import os
import pty
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import pytest

from rollout.results.journal import read_journal

TESTS = Path(__file__).parent
COUNT, FAULTY = "gym:toys:toy/Count-v0", "gym:toys:toy/Faulty-v0"
DEADLINE_S = 60


def rollout(*arguments: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    environ = os.environ | {"PYTHONPATH": str(TESTS)}
    command = [sys.executable, "-c", "from rollout.cli import main; main()", *arguments]
    return subprocess.run(
        command,
        cwd=cwd,
        env=environ,
        capture_output=True,
        text=True,
        timeout=DEADLINE_S,
        check=False,
        stdin=subprocess.DEVNULL,
    )


def records(run: Path) -> list[tuple[int, str | None, int]]:
    return [(r.episode, r.digest, r.steps) for r in read_journal(run)[1]]


def test_a_run_ends_with_a_table_the_files_and_exit_code_0(tmp_path: Path) -> None:
    done = rollout("run", COUNT, "--policy", "random", "--episodes", "4", "--out", "run", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "toy/Count-v0" in done.stdout
    assert "2/4" in done.stdout
    assert "results in run" in done.stdout
    assert {"episodes.jsonl", "actions.msgpack", "summary.json", "eval_info.json"} <= {
        path.name for path in (tmp_path / "run").iterdir()
    }


def test_without_out_the_results_are_kept_all_the_same(tmp_path: Path) -> None:
    done = rollout("run", COUNT, "--policy", "random", "--episodes", "2", "--display", "none", cwd=tmp_path)
    assert (done.returncode, done.stdout) == (0, "")
    (summary,) = tmp_path.glob("runs/*/summary.json")
    assert json.loads(summary.read_text())["overall"]["n_episodes"] == 2


def test_the_number_of_workers_changes_no_record_and_not_their_order(tmp_path: Path) -> None:
    for workers in ("0", "1", "4"):
        done = rollout(
            "run",
            "gym:CartPole-v1",
            "--policy",
            "random",
            "--episodes",
            "40",
            "--workers",
            workers,
            "--out",
            workers,
            cwd=tmp_path,
        )
        assert done.returncode == 0, done.stderr
    assert records(tmp_path / "1") == records(tmp_path / "4") == records(tmp_path / "0")
    assert [episode for episode, _, _ in records(tmp_path / "4")] == list(range(40))


def test_errors_are_exit_code_1_and_said_in_the_table(tmp_path: Path) -> None:
    done = rollout("run", FAULTY, "--policy", "random", "--episodes", "4", "--out", "run", cwd=tmp_path)
    assert done.returncode == 1
    assert "the arm fell off" in done.stdout
    assert "1 episode could not be measured" in done.stdout
    assert "Traceback" not in done.stdout + done.stderr


def test_a_failing_policy_is_exit_code_1_with_its_traceback(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text("class Bad:\n    def infer(self, requests):\n        return 1 / 0\n")
    done = rollout("run", COUNT, "--policy", "mine:Bad", "--episodes", "1", "--out", "run", cwd=tmp_path)
    assert done.returncode == 1
    assert 'mine.py", line 3, in infer' in done.stderr
    assert done.stderr.splitlines()[-1].startswith("rollout: the policy raised ZeroDivisionError")


def test_a_policy_that_raises_a_cancellation_is_exit_code_1_too(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(
        "import asyncio\nclass Bad:\n    def infer(self, requests):\n        raise asyncio.CancelledError('gone')\n"
    )
    done = rollout("run", COUNT, "--policy", "mine:Bad", "--episodes", "1", cwd=tmp_path)
    assert done.returncode == 1
    assert done.stderr.splitlines()[-1].startswith("rollout: the policy raised CancelledError: gone")


def test_a_run_that_ends_early_though_nobody_stopped_it_is_no_success(tmp_path: Path) -> None:
    # Whatever cancels the evaluation from within: here, a policy that stops the run behind the command's back.
    (tmp_path / "mine.py").write_text(
        "import gc\n"
        "from rollout.engine.engine import Run\n"
        "class Bad:\n"
        "    def open_session(self, episode, task):\n"
        "        [run] = [found for found in gc.get_objects() if isinstance(found, Run)]\n"
        "        run.stop()\n"
        "    def infer(self, requests):\n"
        "        return [0] * len(requests)\n"
    )
    done = rollout("run", COUNT, "--policy", "mine:Bad", "--episodes", "3", cwd=tmp_path)
    assert done.returncode == 1
    assert done.stderr.splitlines()[-1] == "rollout: the run ended before its time, and nobody stopped it"


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["run", COUNT, "--polcy", "random"], "--policy"),
        (["run", COUNT, "--policy", "randon"], "random"),
        (["run", "metaworld:mt11", "--policy", "random"], "metaworld:mt10"),
        (["run", COUNT, "--policy", "random", "--display", "lives"], "live"),
        (["run", COUNT, "--policy", "random", "--workers", "many"], "auto"),
        (["run", COUNT, "--policy", "random", "--tasks", "a"], "0,3,7"),
        (["run", COUNT, "--policy", "random", "--shard", "1"], "1/4"),
        (["run", COUNT, "--policy", "random", "--set", "length"], "KEY=VALUE"),
        (["run", COUNT, "--policy", "random", "--config", "none.toml"], "none.toml"),
        (["run", COUNT, "--policy", "random", "--config", "bad.toml"], "episodes"),
        (["run", COUNT, "--policy", "random", "--out", "bad.toml"], "bad.toml"),
        (["run", COUNT], "--policy"),
        (["run"], "target"),
        (["rum"], "run"),
        (["list", "gmy"], "gym"),
    ],
)
def test_bad_usage_is_one_line_and_exit_code_2(arguments: Sequence[str], says: str, tmp_path: Path) -> None:
    (tmp_path / "bad.toml").write_text("episods = 3\n")
    done = rollout(*arguments, cwd=tmp_path)
    assert done.returncode == 2
    assert done.stdout == ""
    assert len(done.stderr.splitlines()) == 1
    assert says in done.stderr


def test_a_config_file_sets_what_the_command_line_does_not(tmp_path: Path) -> None:
    (tmp_path / "run.toml").write_text(
        f'targets = "{COUNT}"\npolicy = "random"\nepisodes = 3\nseed = 7\nout = "run"\nset = {{ length = 2 }}\n'
    )
    done = rollout("run", "--config", "run.toml", "--seed", "20", "--display", "none", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    header, results = read_journal(tmp_path / "run")
    assert [r.seed for r in results] == [20, 21, 22]
    assert results[0].steps == 2 + 20 % 3
    assert header.config["options"] == {"length": "2"}


def test_json_lines_say_every_record(tmp_path: Path) -> None:
    done = rollout(
        "run", COUNT, "--policy", "random", "--episodes", "3", "--display", "json", "--out", "r", cwd=tmp_path
    )
    events = [json.loads(line) for line in done.stdout.splitlines()]
    assert events[0]["event"] == "start"
    assert events[-1]["event"] == "end"
    assert sorted(e["record"]["episode"] for e in events if e["event"] == "episode") == [0, 1, 2]


def test_a_pipe_that_closes_early_costs_nothing(tmp_path: Path) -> None:
    command = (
        f"{sys.executable} -c 'from rollout.cli import main; main()' run {COUNT} --policy random --episodes 3 "
        "--out r | head -n 1; exit ${PIPESTATUS[0]}"
    )
    done = subprocess.run(
        ["bash", "-c", command],
        cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": str(TESTS)},
        capture_output=True,
        text=True,
        timeout=DEADLINE_S,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "Traceback" not in done.stderr
    assert len(records(tmp_path / "r")) == 3


class Running:
    """`rollout run` on a terminal of its own, started and waited for."""

    def __init__(self, cwd: Path, *arguments: str) -> None:
        self._terminal, theirs = pty.openpty()
        environ = os.environ | {
            "PYTHONPATH": str(TESTS),
            "TERM": "xterm-256color",
            "COLUMNS": "100",
            "LINES": "30",
        }
        command = [sys.executable, "-c", "from rollout.cli import main; main()", "run", *arguments]
        self.process = subprocess.Popen(
            command, cwd=cwd, env=environ, stdin=theirs, stdout=theirs, stderr=theirs, start_new_session=True
        )
        os.close(theirs)
        os.set_blocking(self._terminal, False)
        self.seen = ""

    def read(self) -> None:
        with contextlib.suppress(OSError):  # nothing now, or the other side is gone
            self.seen += os.read(self._terminal, 1 << 16).decode("utf-8", "replace")

    def hang_up(self) -> None:
        os.close(self._terminal)
        self.process.send_signal(signal.SIGHUP)

    def until(self, condition: object) -> None:
        assert callable(condition)
        deadline = time.monotonic() + DEADLINE_S
        while not condition():
            assert time.monotonic() < deadline, self.seen[-2000:]
            assert self.process.poll() is None, self.seen[-2000:]
            self.read()
            time.sleep(0.02)

    def wait(self) -> int:
        deadline = time.monotonic() + DEADLINE_S
        while self.process.poll() is None:
            assert time.monotonic() < deadline, self.seen[-2000:]
            self.read()
            time.sleep(0.02)
        self.read()
        return self.process.returncode


def recorded(run: Path) -> int:
    journal = run / "episodes.jsonl"
    return len(journal.read_bytes().splitlines()) - 1 if journal.exists() else 0


def children_of(pid: int) -> list[str]:
    return [p.name for p in Path("/proc").iterdir() if p.name.isdigit() and is_child(p, pid)]


def is_child(process: Path, pid: int) -> bool:
    try:
        return f"\nPPid:\t{pid}\n" in (process / "status").read_text()
    except OSError:
        return False


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_keeps_what_is_done_and_the_run_can_go_on(
    number: signal.Signals, code: int, tmp_path: Path
) -> None:
    arguments = ["gym:CartPole-v1", "--policy", "random", "--episodes", "2000", "--out", "run"]
    running = Running(tmp_path, *arguments)
    running.until(lambda: recorded(tmp_path / "run") > 20)
    running.process.send_signal(number)
    assert running.wait() == code
    assert "Traceback" not in running.seen
    assert "--resume" in running.seen
    kept = records(tmp_path / "run")
    assert 20 < len(kept) < 2000
    assert json.loads((tmp_path / "run" / "summary.json").read_text())["complete"] is False
    done = rollout("run", *arguments, "--resume", "--display", "none", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert len(records(tmp_path / "run")) == 2000
    assert set(kept) <= set(records(tmp_path / "run"))


def test_a_closed_terminal_ends_the_run_and_keeps_what_is_done(tmp_path: Path) -> None:
    running = Running(tmp_path, "gym:CartPole-v1", "--policy", "random", "--episodes", "3000", "--out", "run")
    running.until(lambda: recorded(tmp_path / "run") > 20)
    running.hang_up()
    assert running.process.wait(DEADLINE_S) == 128 + signal.SIGHUP
    assert len(records(tmp_path / "run")) > 20


def test_killing_the_parent_leaves_no_process(tmp_path: Path) -> None:
    running = Running(tmp_path, "gym:CartPole-v1", "--policy", "random", "--episodes", "3000", "--out", "run")
    running.until(lambda: recorded(tmp_path / "run") > 20)
    forkservers = children_of(running.process.pid)
    workers = [child for forkserver in forkservers for child in children_of(int(forkserver))]
    assert workers
    running.process.kill()
    running.process.wait(DEADLINE_S)
    deadline = time.monotonic() + DEADLINE_S
    while any(Path("/proc", pid).exists() for pid in forkservers + workers):
        assert time.monotonic() < deadline
        time.sleep(0.02)


def test_list_shows_what_can_be_run(tmp_path: Path) -> None:
    catalogue = rollout("list", cwd=tmp_path)
    assert catalogue.returncode == 0, catalogue.stderr
    assert {"gym", "metaworld", "libero", "random", "zero", "expert"} <= set(
        catalogue.stdout.replace(",", " ").split()
    )
    tasks = rollout("list", COUNT, cwd=tmp_path)
    assert tasks.returncode == 0, tasks.stderr
    assert "toy/Count-v0" in tasks.stdout


@pytest.mark.metaworld
def test_list_gives_long_names_whole_in_a_pipe_and_everything_of_a_family(tmp_path: Path) -> None:
    overview = rollout("list", cwd=tmp_path).stdout
    assert "metaworld:mt50" in overview
    assert "metaworld:window-open-v3" not in overview
    assert "more: rollout list metaworld" in overview
    assert "\n\npolicies  " in overview
    assert "metaworld:window-open-v3" in rollout("list", "metaworld", cwd=tmp_path).stdout
    tasks = rollout("list", "metaworld:mt50", cwd=tmp_path).stdout
    assert "button-press-topdown-wall-v3  Bypass a wall and press a button from the top" in tasks


def test_a_script_without_a_main_guard_works(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(
        f"import rollout\nprint(rollout.run('random', {COUNT!r}, episodes=2, workers=2).success_rate)\n"
    )
    done = subprocess.run(
        [sys.executable, str(script)],
        env=os.environ | {"PYTHONPATH": str(TESTS)},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=DEADLINE_S,
        check=False,
    )
    assert (done.stdout, done.returncode) == ("0.5\n", 0), done.stderr


def test_with_workers_0_breakpoints_work_in_simulator_and_policy(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(
        "class Stops:\n    def infer(self, requests):\n"
        "        breakpoint()\n        return [[[0.0, 0.0]] for _ in requests]\n"
    )
    environ = os.environ | {"PYTHONPATH": str(TESTS), "PYTHONBREAKPOINT": "pdb.set_trace"}
    command = [
        sys.executable,
        "-c",
        "from rollout.cli import main; main()",
        "run",
        COUNT,
        "--policy",
        "mine:Stops",
        "--episodes",
        "1",
        "--workers",
        "0",
        "--out",
        "run",
        "--horizon",
        "1",
    ]
    done = subprocess.run(
        command,
        cwd=tmp_path,
        env=environ,
        input="p 'seen', len(requests)\nc\n",
        capture_output=True,
        text=True,
        timeout=DEADLINE_S,
        check=False,
    )
    assert "('seen', 1)" in done.stdout
    assert done.returncode == 0, done.stderr
