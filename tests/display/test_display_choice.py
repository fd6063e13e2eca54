"""Which display a run gets, and that none can cost it anything."""

from __future__ import annotations

import io
import logging
import os
import pty

import pytest

from rollout.display.json import JsonDisplay
from rollout.display.live import LiveDisplay
from rollout.display.plain import PlainDisplay
from rollout.display.select import GuardedDisplay, NullDisplay, create_display
from rollout.display.terminal import Terminal


@pytest.fixture
def terminal():
    master, slave = pty.openpty()
    with open(slave, "w", encoding="utf-8") as stream:
        yield stream
    os.close(master)


@pytest.mark.parametrize("name", ["auto", "live"])
def test_a_terminal_gets_the_live_view(name, terminal):
    assert isinstance(create_display(name, terminal).inner, LiveDisplay)


@pytest.mark.parametrize("name", ["auto", "live"])
def test_a_file_or_pipe_gets_plain_lines(name):
    assert isinstance(create_display(name, io.StringIO()).inner, PlainDisplay)


@pytest.mark.parametrize(
    ("variable", "value"), [("TERM", "dumb"), ("TERM", ""), ("TTY_INTERACTIVE", "0"), ("TTY_COMPATIBLE", "0")]
)
def test_a_terminal_that_cannot_move_its_cursor_gets_plain_lines(variable, value, terminal, monkeypatch):
    monkeypatch.setenv(variable, value)
    assert isinstance(create_display("auto", terminal).inner, PlainDisplay)


def test_no_color_takes_the_colours_and_not_the_live_view(terminal, monkeypatch):
    monkeypatch.setenv("NO_COLOR", "1")
    assert isinstance(create_display("auto", terminal).inner, LiveDisplay)


def test_a_terminal_that_does_not_speak_unicode_gets_plain_lines(terminal):
    with open(os.dup(terminal.fileno()), "w", encoding="iso-8859-1") as latin:
        assert isinstance(create_display("auto", latin).inner, PlainDisplay)


def test_plain_json_and_none_are_given_as_asked(terminal):
    assert isinstance(create_display("plain", terminal).inner, PlainDisplay)
    assert isinstance(create_display("json", terminal).inner, JsonDisplay)
    assert isinstance(create_display("none", terminal), NullDisplay)


class Gone(io.StringIO):
    """A stream whose reader has left."""

    def write(self, text: str) -> int:
        raise BrokenPipeError(32, "Broken pipe")


def show_a_run(display, make) -> None:
    display.start(make.plan(), make.counters())
    display.refresh()
    display.note("x")
    display.episode(make.error("y"))
    display.refresh()
    display.finish()


@pytest.mark.parametrize(
    "build", [PlainDisplay, JsonDisplay, lambda stream: LiveDisplay(Terminal(stream, force_terminal=True))]
)
@pytest.mark.parametrize("stream", [Gone, "closed"])
def test_a_stream_that_is_gone_switches_the_display_off_in_silence(make, build, stream, caplog, capsys):
    if stream == "closed":
        file = io.StringIO()
        file.close()
    else:
        file = stream()
    display = GuardedDisplay(build(file))
    display.start(make.plan(), make.counters())
    assert display.inner is None
    show_a_run(display, make)
    assert not caplog.records
    assert capsys.readouterr() == ("", "")


def test_a_bug_of_a_display_is_logged_and_ends_only_the_display(make, caplog):
    class Buggy(NullDisplay):
        finished = 0

        def refresh(self) -> None:
            raise KeyError("on purpose")

        def finish(self) -> None:
            self.finished += 1

    inner = Buggy()
    with caplog.at_level(logging.WARNING):
        show_a_run(GuardedDisplay(inner), make)
    assert inner.finished == 1
    assert [record.exc_info[0] for record in caplog.records] == [KeyError]


def test_the_guard_follows_the_pace_of_its_display(make):
    class Slow(NullDisplay):
        interval_s = 0.25

        def refresh(self) -> None:
            self.interval_s = 3.0

    display = GuardedDisplay(Slow())
    assert display.interval_s == 0.25
    display.start(make.plan(), make.counters())
    display.refresh()
    assert display.interval_s == 3.0
    display.finish()
