"""Ctrl-C, SIGTERM and the like at every stage of a command, on a real terminal and in a library's process."""

from __future__ import annotations

import fcntl
import os
import pty
import re
import signal
import subprocess
import sys
import termios
import time
import uuid
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from signal import SIGHUP, SIGINT, SIGTERM
from typing import Any

import pytest

from rollout.results.journal import read_journal

TESTS = Path(__file__).parent
STICKY = "gym:stuck:stuck/Sticky-v0"
RUN = ("run", STICKY, "--episodes", "4", "--workers", "2", "--out", "run")
DEADLINE_S = 60
NOISE = re.compile(
    r"Traceback|resource_tracker|leaked|Exception ignored|Error in atexit|Task exception|never awaited"
)


class Terminal:
    """A command on a terminal of its own: typed at, read, waited for."""

    def __init__(self, command: Sequence[str], cwd: Path, **environ: str) -> None:
        self.cwd, self.mark = cwd, uuid.uuid4().hex
        self._terminal, theirs = pty.openpty()
        self.before = termios.tcgetattr(self._terminal)
        env = os.environ | {
            "PYTHONPATH": str(TESTS),
            "TERM": "xterm-256color",
            "COLUMNS": "100",
            "LINES": "30",
            "STUCK": str(cwd / "stuck"),
            "SIGNALS_MARK": self.mark,
            **environ,
        }

        def own_the_terminal() -> None:
            for number in (SIGINT, SIGTERM, SIGHUP):  # whoever runs the tests may have them ignored
                signal.signal(number, signal.SIG_DFL)
            fcntl.ioctl(0, termios.TIOCSCTTY, 0)

        self.process = subprocess.Popen(
            command,
            cwd=cwd,
            env=env,
            stdin=theirs,
            stdout=theirs,
            stderr=theirs,
            start_new_session=True,
            preexec_fn=own_the_terminal,  # noqa: PLW1509 -- no other way to a controlling terminal
        )
        os.close(theirs)
        os.set_blocking(self._terminal, False)
        self.seen = ""

    @property
    def after(self) -> list[Any]:
        return termios.tcgetattr(self._terminal)

    @property
    def processes(self) -> list[int]:
        """What is left of the command and of all that it started."""
        return [int(p.name) for p in Path("/proc").iterdir() if p.name.isdigit() and self._started(p)]

    def _started(self, process: Path) -> bool:
        try:
            return f"SIGNALS_MARK={self.mark}".encode() in (process / "environ").read_bytes()
        except OSError:
            return False

    def type(self, text: str) -> None:
        os.write(self._terminal, text.encode())

    def hang_up(self) -> None:
        os.close(self._terminal)

    def read(self) -> None:
        with suppress(OSError):  # nothing now, or the other side is gone
            while data := os.read(self._terminal, 1 << 16):
                self.seen += data.decode("utf-8", "replace")

    def until(self, condition: Callable[[], object]) -> None:
        self._wait(condition, lambda: self.process.poll() is None)

    def until_stuck(self) -> None:
        self.until((self.cwd / "stuck").exists)

    def wait(self, within_s: float = DEADLINE_S) -> int:
        """The exit code, as a shell tells it; nothing may be left then."""
        self._wait(lambda: self.process.poll() is not None, lambda: True, within_s)
        self._wait(lambda: not self.processes, lambda: True, 5.0)
        self.read()
        code = self.process.returncode
        return code if code >= 0 else 128 - code

    def _wait(
        self, condition: Callable[[], object], alive: Callable[[], bool], within_s: float = DEADLINE_S
    ) -> None:
        deadline = time.monotonic() + within_s
        while not condition():
            assert time.monotonic() < deadline, f"{self.seen[-2000:]}\nleft: {self.processes}"
            assert alive(), self.seen[-2000:]
            self.read()
            time.sleep(0.02)


def rollout(cwd: Path, *arguments: str, **environ: str) -> Terminal:
    return Terminal([sys.executable, "-m", "rollout", *arguments], cwd, **environ)


def assert_in_good_order(terminal: Terminal) -> None:
    assert not NOISE.search(terminal.seen), terminal.seen
    assert terminal.seen.rfind("\x1b[?25h") >= terminal.seen.rfind("\x1b[?25l"), "the cursor stays hidden"
    assert terminal.after == terminal.before


STAGES = {
    "listing": ("run", "gym:stuck_import:stuck/Sticky-v0", "--policy", "zero", "--out", "run"),
    "rollout list": ("list", "gym:stuck_import:stuck/Sticky-v0"),
    "loading": (*RUN, "--policy", "stuck:stuck_factory"),
    "building": (*RUN, "--policy", "zero", "--set", "where=build"),
    "stepping": (*RUN, "--policy", "zero", "--set", "where=step"),
    "forward": (*RUN, "--policy", "stuck:StuckForward"),
    "forward in C++": (*RUN, "--policy", "stuck:StuckTorch"),
    "session": (*RUN, "--policy", "stuck:StuckSession"),
    "sealing": (*RUN, "--policy", "stuck:slow_disk"),
}


@pytest.mark.parametrize("stage", STAGES)
def test_ctrl_c_ends_every_stage_in_good_order(stage: str, tmp_path: Path) -> None:
    terminal = rollout(tmp_path, *STAGES[stage])
    terminal.until_stuck()
    terminal.type("\x03")
    assert terminal.wait(within_s=20) == 128 + SIGINT
    assert "rollout: stopped by SIGINT" in terminal.seen
    assert_in_good_order(terminal)


@pytest.mark.parametrize("stage", ["rollout list", "building", "stepping", "forward"])
def test_sigterm_ends_every_stage_in_good_order(stage: str, tmp_path: Path) -> None:
    terminal = rollout(tmp_path, *STAGES[stage])
    terminal.until_stuck()
    terminal.process.terminate()
    assert terminal.wait(within_s=20) == 128 + SIGTERM
    assert "rollout: stopped by SIGTERM" in terminal.seen
    assert_in_good_order(terminal)


def test_ctrl_c_while_the_command_itself_is_imported_says_nothing(tmp_path: Path) -> None:
    (tmp_path / "click.py").write_text(
        (TESTS / "stuck_import.py").read_text().replace("from stuck", "from slow")
    )
    (tmp_path / "slow.py").write_text(
        "import os, time\ndef stick():\n    open(os.environ['STUCK'], 'w').close()\n    time.sleep(600)\n"
    )
    terminal = rollout(tmp_path, "list", PYTHONPATH=str(tmp_path))
    terminal.until_stuck()
    terminal.type("\x03")
    assert terminal.wait(within_s=20) == 128 + SIGINT
    assert terminal.seen == "^C"


def test_what_was_measured_before_the_signal_is_kept_with_a_summary(tmp_path: Path) -> None:
    terminal = rollout(tmp_path, *STAGES["stepping"])
    terminal.until(lambda: (tmp_path / "stuck").exists() and recorded(tmp_path / "run") == 2)
    terminal.type("\x03")
    assert terminal.wait() == 128 + SIGINT
    assert [e.episode for e in read_journal(tmp_path / "run")[1]] == [0, 2]
    assert '"complete": false' in (tmp_path / "run" / "summary.json").read_text()
    assert "go on with --resume" in terminal.seen


def test_a_signal_after_the_last_episode_costs_none_of_the_results(tmp_path: Path) -> None:
    terminal = rollout(tmp_path, *STAGES["sealing"])
    terminal.until_stuck()
    terminal.type("\x03")
    assert terminal.wait() == 128 + SIGINT
    assert [e.episode for e in read_journal(tmp_path / "run")[1]] == [0, 1, 2, 3]
    assert '"complete": true' in (tmp_path / "run" / "summary.json").read_text()
    assert (tmp_path / "run" / "eval_info.json").exists()
    assert "--resume" not in terminal.seen


@pytest.mark.parametrize("stage", ["loading", "session"])
def test_a_second_ctrl_c_ends_at_once_what_does_not_hear_the_first(stage: str, tmp_path: Path) -> None:
    terminal = rollout(tmp_path, *STAGES[stage])
    terminal.until_stuck()
    terminal.type("\x03")
    terminal.until(lambda: "^C" in terminal.seen)
    time.sleep(0.6)  # two signals at once are one
    terminal.type("\x03")
    assert terminal.wait(within_s=2.3) == 128 + SIGINT  # sooner than the first alone would
    assert_in_good_order(terminal)


TWICE = """
import anyio, os, sys
from rollout.stop import Stop

first, second, gap_s = int(sys.argv[1]), int(sys.argv[2]), float(sys.argv[3])
stop = Stop()

async def work():
    os.kill(os.getpid(), first)
    if gap_s:
        await anyio.sleep(gap_s)
    os.kill(os.getpid(), second)
    await anyio.sleep(0)
    print("in good order", flush=True)

anyio.run(stop.guard, work, lambda: True)
sys.exit(stop.exit_code)
"""


@pytest.mark.parametrize(
    ("first", "second", "gap_s", "at_once"),
    [
        (SIGHUP, SIGHUP, 0.0, False),  # a closed terminal, told of by the shell and by the kernel
        (SIGHUP, SIGHUP, 0.6, False),
        (SIGTERM, SIGHUP, 0.6, False),
        (SIGTERM, SIGTERM, 0.0, False),  # a supervisor's, to the process and to its group
        (SIGINT, SIGINT, 0.0, False),
        (SIGTERM, SIGTERM, 0.6, True),
        (SIGHUP, SIGTERM, 0.6, True),
        (SIGINT, SIGINT, 0.6, True),
    ],
)
def test_only_a_second_wish_ends_at_once_what_the_first_lets_end_in_good_order(
    first: int, second: int, gap_s: float, at_once: bool
) -> None:
    command = [sys.executable, "-c", TWICE, str(int(first)), str(int(second)), str(gap_s)]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=DEADLINE_S, check=False)
    assert ended.returncode == 128 + first, ended.stderr
    assert ended.stdout == ("" if at_once else "in good order\n")


def test_a_shell_whose_terminal_is_closed_leaves_a_run_with_its_summary(tmp_path: Path) -> None:
    terminal = Terminal(["bash", "--norc", "-i"], tmp_path, PS1="ready> ")
    terminal.until(lambda: "ready> " in terminal.seen)
    run = f"{sys.executable} -m rollout run gym:CartPole-v1 --policy random --episodes 20000"
    terminal.type(f"{run} --workers 2 --out run\n")
    terminal.until(lambda: recorded(tmp_path / "run") > 20)
    terminal.hang_up()
    terminal.wait()
    assert '"complete": false' in (tmp_path / "run" / "summary.json").read_text()
    assert (tmp_path / "run" / "eval_info.json").exists()


@pytest.mark.parametrize("number", [SIGINT, SIGTERM, SIGHUP])
def test_a_run_inside_the_parent_keeps_its_results_and_can_go_on(
    number: signal.Signals, tmp_path: Path
) -> None:
    arguments = ("gym:CartPole-v1", "--policy", "random", "--episodes", "20000", "--workers", "0")
    terminal = rollout(tmp_path, "run", *arguments, "--out", "run")
    terminal.until(lambda: recorded(tmp_path / "run") > 20)
    terminal.process.send_signal(number)
    assert terminal.wait() == 128 + number
    assert f"rollout: stopped by {number.name}; go on with --resume and the same --out" in terminal.seen
    assert_in_good_order(terminal)
    assert '"complete": false' in (tmp_path / "run" / "summary.json").read_text()
    assert (tmp_path / "run" / "eval_info.json").exists()


def test_a_simulator_that_hangs_inside_the_parent_hears_sigterm(tmp_path: Path) -> None:
    arguments = ("--policy", "zero", "--workers", "0", "--set", "where=build", "--out", "run")
    terminal = rollout(tmp_path, "run", STICKY, *arguments)
    terminal.until_stuck()
    terminal.process.terminate()
    assert terminal.wait(within_s=20) == 128 + SIGTERM
    assert "rollout: stopped by SIGTERM; go on with --resume" in terminal.seen
    assert_in_good_order(terminal)
    assert recorded(tmp_path / "run") == 0


def test_ctrl_z_and_fg_cost_nothing(tmp_path: Path) -> None:
    terminal = Terminal(["bash", "--norc", "-i"], tmp_path, PS1="ready> ")
    run = f"{sys.executable} -m rollout run gym:CartPole-v1 --policy random --episodes 600"
    terminal.until(lambda: "ready> " in terminal.seen)
    terminal.type(f"{run} --step-timeout 2 --out run; echo code $?\n")
    terminal.until(lambda: recorded(tmp_path / "run") > 20)
    terminal.type("\x1a")
    terminal.until(lambda: "Stopped" in terminal.seen)
    stopped_at = recorded(tmp_path / "run")
    time.sleep(2.5)  # longer than a step may take
    assert recorded(tmp_path / "run") == stopped_at < 600
    terminal.type("fg\n")
    terminal.until(lambda: recorded(tmp_path / "run") == 600)
    terminal.until((tmp_path / "run" / "summary.json").exists)
    terminal.type("exit\n")
    terminal.wait()
    assert not NOISE.search(terminal.seen), terminal.seen
    assert {e.attempts for e in read_journal(tmp_path / "run")[1]} == {1}


def test_nohup_outlives_its_terminal(tmp_path: Path) -> None:
    terminal = Terminal(["nohup", sys.executable, "-m", "rollout", *STAGES["sealing"]], tmp_path)
    terminal.until_stuck()
    terminal.process.send_signal(SIGHUP)
    assert terminal.wait() == 0
    assert (tmp_path / "run" / "eval_info.json").exists()


LIBRARY = f"""
import asyncio, os, rollout, sys
from pathlib import Path

def evaluation():
    return rollout.evaluate("zero", {STICKY!r}, episodes=4, workers=2, options={{"where": "step"}}, out="run")

async def cancelled():
    task = asyncio.create_task(evaluation())
    while not Path("stuck").exists():
        await asyncio.sleep(0.01)
    task.cancel()
    await task

def interrupted():
    rollout.run("zero", {STICKY!r}, episodes=4, workers=2, options={{"where": "step"}}, out="run")

try:
    asyncio.run(cancelled()) if sys.argv[1] == "cancelled" else interrupted()
except (KeyboardInterrupt, asyncio.CancelledError) as exc:
    children = Path(f"/proc/self/task/{{os.getpid()}}/children").read_text()
    print(type(exc).__name__, "children:", children.split(), flush=True)
    input("go on? ")
"""


@pytest.mark.parametrize("how", ["KeyboardInterrupt", "CancelledError"])
def test_an_evaluation_of_a_library_that_is_interrupted_or_cancelled_leaves_no_process(
    how: str, tmp_path: Path
) -> None:
    (tmp_path / "script.py").write_text(LIBRARY)
    argument = "cancelled" if how == "CancelledError" else "interrupted"
    terminal = Terminal([sys.executable, "script.py", argument], tmp_path)
    terminal.until_stuck()
    if how == "KeyboardInterrupt":
        terminal.type("\x03")
    terminal.until(lambda: "go on?" in terminal.seen)
    assert f"{how} children: []" in terminal.seen
    assert terminal.processes == [terminal.process.pid]
    assert (tmp_path / "run" / "summary.json").exists()
    terminal.type("\n")
    assert terminal.wait() == 0
    assert not NOISE.search(terminal.seen), terminal.seen


def recorded(run: Path) -> int:
    journal = run / "episodes.jsonl"
    return len(journal.read_bytes().splitlines()) - 1 if journal.exists() else 0
