"""The digest of a run's errors: kinds, advice, and the command to type next."""

from __future__ import annotations

import io
import re
from pathlib import Path

import pytest
from msgspec.structs import replace

from rollout.display.advice import advice
from rollout.display.digest import print_errors
from rollout.display.ending import resume_command
from rollout.display.terminal import Terminal
from rollout.types import EpisodeFailure

OUT, AGAIN = Path("runs/first"), "rollout run metaworld:mt10 --policy expert --out runs/first --resume"


@pytest.fixture
def printed(monkeypatch):
    """The digest's lines, on a terminal of some width or in a file."""
    monkeypatch.setenv("NO_COLOR", "1")

    def lines(results, *, width=None, out=OUT, again=AGAIN):
        stream = io.StringIO()
        console = Terminal(stream, force_terminal=width is not None, width=width or 80)
        several = len({result.task_key for result in results}) > 1
        print_errors(results, console, several_tasks=several, out=out, again=again)
        return re.sub(r"\x1b\[[\d;]*m", "", stream.getvalue()).splitlines()

    return lines


@pytest.fixture
def error(make):
    def build(kind="WorkerDied", message="the worker process was killed by SIGSEGV", **changes):
        return replace(make.error("", **changes), error=EpisodeFailure(type=kind, message=message))

    return build


def test_a_kind_has_its_reason_its_episodes_its_advice_and_the_next_command(printed, error, make):
    died = [error(episode=episode, attempts=3) for episode in (1, 5)]
    assert printed([make.result(episode=0), *died]) == [
        "  2× the worker process was killed by SIGSEGV  (episodes 1, 5; tried 3×)",
        "     → a crash in native code, often in a graphics driver: try --render cpu",
        "in full, with tracebacks: runs/first/episodes.jsonl (error.traceback)",
        f"then run only these again: {AGAIN}",
    ]


def test_a_run_without_errors_has_no_digest(printed, make):
    assert printed([make.result()]) == []


def test_messages_that_differ_in_numbers_are_one_kind(printed, error):
    lines = printed(
        [
            error("RuntimeError", f"exploded at step {7 + episode} of 0x7f{episode:02x}", episode=episode)
            for episode in range(12)
        ]
    )
    assert lines[0] == "  12× RuntimeError: exploded at step 7 of 0x7f00  (episodes 0, 1, 2, …)"
    assert len(lines) == 4


def test_the_commonest_kinds_come_first_and_the_digest_stays_within_ten_lines(printed, error):
    kinds = "abcdefgh"
    lines = printed([error("E" + kind, kind, episode=n) for n, kind in enumerate(kinds + "hhg")])
    assert [line.split()[:2] for line in lines if "×" in line] == [
        ["3×", "Eh:"],
        ["2×", "Eg:"],
        ["1×", "Ea:"],
    ]
    assert "  and 5 errors of 5 other kinds" in lines
    assert len(lines) <= 10


def test_where_there_are_several_tasks_they_are_named(printed, error):
    one = [error(task="push-v3", task_id=1, episode=episode) for episode in (0, 3)]
    other = [error("ValueError", "no", task=task, task_id=n) for n, task in ((0, "reach-v3"), (1, "push-v3"))]
    lines = printed([*one, *other])
    assert lines[0].endswith("(push-v3 episodes 0, 3)")
    assert lines[2].endswith("(episodes reach-v3 3, push-v3 3)")


def test_episodes_whose_task_could_not_be_built_were_not_tried(printed, error):
    lines = printed([error("ImportError", "libEGL.so.1: gone", episode=n, attempts=n == 0) for n in range(8)])
    assert lines[:2] == [
        "  8× ImportError: libEGL.so.1: gone  (episodes 0, 1, 2, …; 7 not tried)",
        "     → `rollout doctor` names the missing library and what installs it",
    ]


@pytest.mark.parametrize("width", [40, 80, 120])
def test_a_long_message_is_cut_to_one_line_of_the_terminal_and_a_command_never(printed, error, width):
    lines = printed(
        [error("ValueError", "漢字 " * 500, episode=n, attempts=3) for n in range(5)], width=width
    )
    assert lines[0].startswith("  5× ValueError: 漢")
    assert lines[0].endswith("…  (episodes 0, 1, 2, …; tried 3×)")
    assert width < 60 or len(lines[0]) <= width
    assert lines[-1] == f"then run only these again: {AGAIN}"
    assert len(printed([error("ValueError", "x" * 5000)])[0]) < 400


def test_no_code_of_a_message_reaches_the_terminal(printed, error):
    message = "\x1b[2J\x1b]0;owned\x07\n\x9b31mred\x1b[0m \x07\x00\u202ealert\x7f\r\nsecond line"
    lines = printed([error("Value\x1b[1mError", message, task="\x1b[8mhidden")], width=80)
    assert lines[0] == "  1× ValueError: red alert  (episode 3)"
    assert all(character.isprintable() for line in lines for character in line)


def test_without_results_on_disk_there_is_nothing_to_resume(printed, error):
    assert len(printed([error()], out=None, again=None)) == 2


@pytest.mark.parametrize(
    ("kind", "message", "told"),
    [
        ("WorkerDied", "the worker process was killed by SIGKILL (out of memory?)", "fewer --workers"),
        ("WorkerDied", "the worker process was killed by SIGKILL (somebody else sent it)", "batch system"),
        ("WorkerDied", "the worker process was killed by SIGABRT", "--render cpu"),
        ("WorkerDied", "the worker process was killed by SIGALRM", "sent it this signal"),
        ("WorkerDied", "the worker process was killed by signal 63", "sent it this signal"),
        ("ProtocolError", "7 bytes of rewards and 1 observations after 1 actions", "descriptors"),
        ("WorkerDied", "the worker process exited with status 0", "ended its process"),
        ("WorkerDied", "no process could be made for worker 3: EAGAIN", "ulimit"),
        ("WorkerDied", "worker 3 broke the protocol: the connection was closed", "descriptors"),
        ("WorkerTimeout", "a step did not end within 2 s (--step-timeout 2)", "raise --step-timeout"),
        ("WorkerTimeout", "no reset within 2 s (--reset-timeout 2)", "raise --reset-timeout"),
        ("WorkerTimeout", "no answer within its time limit", "raise --step-timeout or --reset-timeout"),
        ("TypeError", "this environment has the old Gym API (reset() …)", "shimmy"),
        ("ImportError", "libEGL.so.1: cannot open shared object file", "rollout doctor"),
        (
            "AttributeError",
            "'NoneType' object has no attribute 'eglQueryString': OpenGL is …",
            "rollout doctor",
        ),
        ("ModuleNotFoundError", "No module named 'robosuite'", "install it"),
        ("EOFError", "EOF when reading a line", "asks a question"),
        ("ValueError", "render() returned no frame to film: does it …", "leave out --video"),
        ("MemoryError", "", "fewer --workers"),
        ("OutOfMemoryError", "CUDA out of memory. Tried to allocate 2 GiB", "fewer --workers"),
        ("OSError", "[Errno 28] No space left on device", "make room"),
        ("RuntimeError", "the arm fell off", "--workers 0"),
        ("RuntimeError", "", "--workers 0"),
    ],
)
def test_known_causes_have_their_fix_in_a_line_that_fits(kind, message, told):
    line = advice(EpisodeFailure(type=kind, message=message))
    assert told in line
    assert len(f"     → {line}") <= 80


@pytest.mark.parametrize(
    ("arguments", "command"),
    [
        (["run", "gym:A-v0", "--out", "x"], "rollout run gym:A-v0 --out x --resume"),
        (["run", "gym:A-v0", "--out=x", "--resume"], "rollout run gym:A-v0 --out=x --resume"),
        (
            ["run", "gym:A-v0", "--set", "a=b c"],
            "rollout run gym:A-v0 --set 'a=b c' --out 'runs/it'\"'\"'s' --resume",
        ),
        (["run", "--out", "x", "--", "gym:A-v0"], "rollout run --out x --resume -- gym:A-v0"),
    ],
)
def test_the_command_that_resumes_a_run_is_its_own_with_what_it_lacks(arguments, command):
    assert resume_command(arguments, Path("runs/it's")) == command
