"""What a user reads when simulators fail: real runs, in a pipe and on a terminal."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import pty
import re
import shlex
import struct
import subprocess
import sys
import termios
from pathlib import Path

import pytest

TESTS = Path(__file__).parent
FAULTY, RUDE = "gym:toys:toy/Faulty-v0", "gym:rude:rude/Rude-v0"
ROLLOUT = (sys.executable, "-c", "from rollout.cli import main; main()")
ENVIRON = os.environ | {"PYTHONPATH": str(TESTS), "TERM": "xterm-256color"}
DEADLINE_S = 60
KNOWN_CODES = re.compile(r"\x1b\[[\d;]*[mAK]|\x1b\[\?25[lh]")  # what the live view itself says to a terminal


def rollout(*arguments: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*ROLLOUT, *arguments],
        cwd=cwd,
        env=ENVIRON,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=DEADLINE_S,
        check=False,
    )


def rollout_on_terminal(*arguments: str, cwd: Path, width: int = 80) -> str:
    """What a terminal of `width` columns is sent, with the codes of the live view removed."""
    parent, child = pty.openpty()
    fcntl.ioctl(child, termios.TIOCSWINSZ, struct.pack("HHHH", 24, width, 0, 0))
    with subprocess.Popen(
        [*ROLLOUT, *arguments], cwd=cwd, env=ENVIRON, stdin=child, stdout=child, stderr=child
    ):
        os.close(child)
        sent = b""
        with contextlib.suppress(OSError):  # EIO: the run is over
            while data := os.read(parent, 1 << 16):
                sent += data
    os.close(parent)
    return KNOWN_CODES.sub("", sent.decode())


def codes(text: str) -> set[str]:
    """The control characters in `text` that a terminal may take for commands."""
    return {char for char in text if not char.isprintable()} - set("\r\n")


def test_the_end_says_what_happened_what_it_did_to_the_number_and_what_to_do(tmp_path: Path) -> None:
    arguments = [
        "run",
        FAULTY,
        "--policy",
        "zero",
        "--episodes",
        "8",
        "--set",
        "how=segfault",
        "--out",
        "a run",
    ]
    done = rollout(*arguments, cwd=tmp_path)
    assert done.returncode == 1, done.stderr
    lines = done.stdout.splitlines()
    end = lines[next(index for index, line in enumerate(lines) if "could not be measured" in line) :]
    assert "2 episodes could not be measured and count in no rate" in end[0]
    assert "between 50 % and 75 %" in end[0]  # 4 of 6 succeed
    assert "SIGSEGV" in end[1]
    assert "episodes 1, 5; tried 3×" in end[1]
    assert "--render cpu" in end[2]
    assert "a run/episodes.jsonl" in end[3]
    assert end[4] == f"then run only these again: {shlex.join(['rollout', *arguments, '--resume'])}"
    assert len(end) <= 10


def test_the_command_that_is_printed_runs_only_the_errors_again(tmp_path: Path) -> None:
    once = tmp_path / "it's been"
    first = rollout(
        "run",
        FAULTY,
        "--policy",
        "zero",
        "--episodes",
        "3",
        "--set",
        f"once={once}",
        "--workers",
        "1",
        cwd=tmp_path,
    )
    assert first.returncode == 1, first.stderr
    (command,) = re.findall(r"^then run only these again: rollout (.*)$", first.stdout, re.MULTILINE)
    second = rollout(*shlex.split(command), cwd=tmp_path)
    assert second.returncode == 0, second.stderr
    assert "(2 already recorded)" in second.stdout
    assert "could not be measured" not in second.stdout


def test_a_task_that_cannot_be_built_is_no_list_of_its_episodes(tmp_path: Path) -> None:
    done = rollout(
        "run",
        FAULTY,
        "--policy",
        "zero",
        "--episodes",
        "50",
        "--set",
        "how=build",
        "--workers",
        "1",
        cwd=tmp_path,
    )
    assert done.returncode == 1, done.stderr
    assert "no episode could be measured: there is no result" in done.stdout
    assert "50× RuntimeError: no such robot  (episodes 0, 1, 2, …; 49 not tried)" in done.stdout
    assert done.stdout.count("no such robot") <= 3


def test_a_time_out_names_the_option_that_allows_more(tmp_path: Path) -> None:
    done = rollout(
        *("run", FAULTY, "--policy", "zero", "--episodes", "3", "--set", "how=hang"),
        *("--step-timeout", "0.5", "--retries", "0"),
        cwd=tmp_path,
    )
    assert done.returncode == 1, done.stderr
    assert "→ it hangs, or needs more time: raise --step-timeout" in done.stdout


@pytest.mark.parametrize("how", ["step", "build"])
def test_no_code_in_a_simulators_message_reaches_a_terminal(tmp_path: Path, how: str) -> None:
    shown = rollout_on_terminal(
        "run", RUDE, "--policy", "zero", "--episodes", "2", "--set", f"how={how}", cwd=tmp_path
    )
    assert "the gripper is jammed" in shown
    assert codes(shown) == set()


@pytest.mark.parametrize("how", ["step", "build"])
def test_events_are_strict_json_whatever_a_simulator_says(tmp_path: Path, how: str) -> None:
    done = rollout(
        *("run", RUDE, "--policy", "zero", "--episodes", "2", "--set", f"how={how}", "--display", "json"),
        cwd=tmp_path,
    )
    assert done.returncode == 1, done.stderr
    assert codes(done.stdout) == set()
    records = [event["record"] for event in map(json.loads, done.stdout.splitlines()) if "record" in event]
    assert len(records) == 2
    assert all("\x1b[2J" in record["error"]["message"] for record in records)


def test_the_line_of_a_wrong_target_has_no_codes_either(tmp_path: Path) -> None:
    shown = rollout_on_terminal("run", "gym:rude_import:rude/Any-v0", "--policy", "zero", cwd=tmp_path)
    assert "the gripper is jammed" in shown
    assert codes(shown) == set()


@pytest.mark.parametrize("width", [80, 120])
def test_on_a_terminal_each_reason_is_one_line(tmp_path: Path, width: int) -> None:
    shown = rollout_on_terminal(
        *("run", FAULTY, "--policy", "zero", "--episodes", "3", "--set", "how=kill", "--retries", "0"),
        cwd=tmp_path,
        width=width,
    )
    (line,) = re.findall(r"^\r*(  1× .*?)\r*$", shown, re.MULTILINE)
    assert line.startswith("  1× the worker process was killed by SIGKILL")
    assert line.endswith("(episode 1)")
    assert len(line) <= width
