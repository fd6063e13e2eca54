"""The live view on a terminal: it redraws in place, lets others print, and gives the terminal back."""

from __future__ import annotations

import os
import pty
import select
import subprocess
import sys
import termios
import textwrap
import threading
import time

import pytest

from rollout.display.live import FASTEST_S, SLOWEST_S, LiveDisplay
from rollout.display.terminal import Terminal, ready

DEADLINE_S = 60


@pytest.fixture
def live(screen):
    display = LiveDisplay(Terminal(screen, force_terminal=True, width=80, height=24))
    yield display
    display.finish()


def test_refreshes_redraw_one_region_in_place(make, screen, live):
    counters = make.counters(3)
    live.start(make.plan(), counters)
    for _ in range(5):
        make.end(counters, 0, successes=1)
        live.refresh()
    assert sum(line.startswith("rollout  metaworld:mt10") for line in screen.shown) == 1
    assert screen.shown[0].startswith("rollout  metaworld:mt10")
    assert "5/12 episodes" in screen.shown[1]
    assert not screen.cursor_visible


def test_notes_and_errors_stand_above_the_region(make, screen, live):
    live.start(make.plan(), make.counters(3))
    live.note("worker 3 died: killed by SIGKILL; retrying")
    live.episode(make.error("out of [red]memory[/red]\nlog"))
    live.episode(make.result())
    live.note("a worker says\n\x1b[2J")
    live.refresh()
    assert screen.shown[:4] == [
        "worker 3 died: killed by SIGKILL; retrying",
        "error: metaworld:mt10 reach-v3 episode 3: WorkerDied: out of [red]memory[/red]",
        "a worker says",
        "rollout  metaworld:mt10  policy expert  2 workers  → runs/first",
    ]


def test_what_a_policy_prints_from_its_thread_stands_above_the_region_unchanged(make, screen, live):
    def infer():
        print("[bold]loss[/nothing] :smile: [0.1, 0.2]")
        print("to stderr", file=sys.stderr)

    live.start(make.plan(), make.counters(3))
    thread = threading.Thread(target=infer)
    thread.start()
    thread.join(DEADLINE_S)
    live.refresh()
    assert screen.shown[:2] == ["[bold]loss[/nothing] :smile: [0.1, 0.2]", "to stderr"]
    assert sum("episodes  " in line for line in screen.shown) == 2  # the bar and the head of the table
    assert screen.shown[2].startswith("rollout  ")


def test_printing_between_refreshes_redraws_the_frame_that_exists_and_reads_no_counters(make, screen, live):
    counters = make.counters(3)
    live.start(make.plan(), counters)
    make.end(counters, 0, successes=1)
    print("hello")
    assert "0/12 episodes" in screen.shown[2]
    live.refresh()
    assert "1/12 episodes" in screen.shown[2]


def test_finish_leaves_the_last_state_and_restores_cursor_and_streams(make, screen, live):
    streams = sys.stdout, sys.stderr
    counters = make.counters(3)
    live.start(make.plan(), counters)
    assert (sys.stdout, sys.stderr) != streams
    for index in range(3):
        make.end(counters, index, successes=3, failures=1)
    live.refresh()
    live.note("the last word")
    live.finish()
    live.finish()
    assert (sys.stdout, sys.stderr) == streams
    assert screen.cursor_visible
    assert screen.shown[0] == "the last word"
    assert screen.shown[1] == "rollout  metaworld:mt10  policy expert  2 workers  → runs/first"
    assert screen.shown[2].endswith("12/12 episodes  100 %  0 s")
    assert len(screen.shown) == 3


def test_many_tasks_never_outgrow_the_screen(make, screen, live):
    live.start(make.plan(), make.counters(130))
    live.refresh()
    assert len(screen.shown) <= 23


def test_without_colours_the_view_is_the_same_text(make, screen, monkeypatch):
    monkeypatch.setenv("NO_COLOR", "1")
    display = LiveDisplay(Terminal(screen, force_terminal=True, width=80, height=24))
    display.start(make.plan(), make.counters(3))
    display.finish()
    assert not screen.colours
    assert screen.shown[0].startswith("rollout  metaworld:mt10")


def test_drawing_that_is_slow_makes_refreshes_rare_and_takes_under_one_percent(make, screen):
    class SlowTerminal(Terminal):
        @property
        def size(self):
            busy_until = time.thread_time() + 0.01
            while time.thread_time() < busy_until:
                pass
            return super().size

    display = LiveDisplay(SlowTerminal(screen, force_terminal=True, width=80, height=24))
    display.start(make.plan(), make.counters(3))
    assert display.interval_s == FASTEST_S
    display.refresh()
    assert 0.01 / 0.01 <= display.interval_s <= SLOWEST_S
    display.finish()


def test_fifty_tasks_are_drawn_in_a_few_milliseconds(make):
    with open(os.devnull, "w", encoding="utf-8") as nowhere:
        display = LiveDisplay(Terminal(nowhere, force_terminal=True, width=160, height=60))
        display.start(make.plan(), make.counters(50))
        costs = []
        for _ in range(20):
            before = time.thread_time()
            display.refresh()
            costs.append(time.thread_time() - before)
        display.finish()
    assert min(costs) < 0.01


def test_a_paused_terminal_is_left_alone_until_it_goes_on(make):
    master, slave = pty.openpty()
    with open(slave, "w", encoding="utf-8") as stream, open(master, "rb", buffering=0) as keyboard:
        display = LiveDisplay(Terminal(stream, width=80, height=24))
        counters = make.counters(3)
        display.start(make.plan(), counters)
        read_until(keyboard, b"0/12 episodes")
        termios.tcflow(slave, termios.TCOOFF)  # what Ctrl-S does
        assert not ready(stream)
        make.end(counters, 0, successes=1)
        display.note("said meanwhile")
        display.refresh()
        assert not select.select([keyboard], [], [], 0)[0]
        termios.tcflow(slave, termios.TCOON)
        display.refresh()
        assert b"said meanwhile" in read_until(keyboard, b"1/12 episodes")
        display.finish()


def read_until(stream, wanted: bytes) -> bytes:
    received, deadline = b"", time.monotonic() + DEADLINE_S
    while wanted not in received:
        assert select.select([stream], [], [], deadline - time.monotonic())[0], received
        received += stream.read(65536)
    return received


RUN = """
import sys, time
from rollout.display.base import Counters, RunPlan, TaskCounters
from rollout.display.live import LiveDisplay
from rollout.display.select import create_display
task = TaskCounters(suite="s", task="task", instruction="", planned=5)
counters = Counters(tasks={("s", 0): task}, planned=5)
display = create_display("auto", sys.stdout)
assert isinstance(display.inner, LiveDisplay)
display.start(RunPlan(targets=("s",), policy="p", specs=(), workers=1, out=None), counters)
display.refresh()
"""


def start_on_a_terminal(code: str) -> tuple[int, subprocess.Popen[bytes]]:
    """Run `code` after `RUN`, with its standard streams on a terminal whose other end is returned."""
    master, slave = pty.openpty()
    process = subprocess.Popen(
        [sys.executable, "-c", RUN + textwrap.dedent(code)],
        stdin=subprocess.PIPE,
        stdout=slave,
        stderr=slave,
        start_new_session=True,
    )
    os.close(slave)
    return master, process


def test_an_exception_that_nobody_catches_leaves_a_usable_terminal():
    master, process = start_on_a_terminal("raise RuntimeError('on purpose')")
    with open(master, "rb", buffering=0) as terminal, process:
        received = read_until(terminal, b"\x1b[?25h")  # the cursor is shown again
        assert process.wait(DEADLINE_S) == 1
    assert b"\x1b[?25l" in received
    assert b"RuntimeError" in received


def test_a_terminal_that_is_closed_costs_the_display_and_not_the_run(tmp_path):
    master, process = start_on_a_terminal(f"""
        import pathlib
        sys.stdin.readline()
        for _ in range(3):
            display.refresh()
            display.note("x")
        assert display.inner is None, display.inner
        display.finish()
        pathlib.Path({str(tmp_path / "end")!r}).write_text("reached")
    """)
    with process:
        with open(master, "rb", buffering=0) as terminal:
            read_until(terminal, b"0/5 episodes")
        process.communicate(b"go on\n", timeout=DEADLINE_S)
    assert (tmp_path / "end").read_text() == "reached"
