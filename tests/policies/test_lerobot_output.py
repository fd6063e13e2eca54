"""What one thread says is kept; what others say, and how a process prints and logs, stays as it is."""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from threading import Barrier, Event
from typing import Any

import pytest

from rollout.policies.lerobot_output import overheard

DEADLINE_S = 60.0


@contextmanager
def bare_root() -> Iterator[None]:
    """The root logger as a process has it at its start: without pytest's handlers, which come after fixtures."""
    root = logging.getLogger()
    handlers = root.handlers[:]
    root.handlers.clear()
    try:
        yield
    finally:
        root.handlers[:] = handlers


def in_another_thread(call: Callable[[], Any]) -> Any:
    with ThreadPoolExecutor(1) as threads:
        return threads.submit(call).result(DEADLINE_S)


@contextmanager
def unchanged() -> Iterator[None]:
    stdout, handlers = sys.stdout, logging.getLogger().handlers[:]
    yield
    assert sys.stdout is stdout
    assert logging.getLogger().handlers == handlers


def test_what_the_thread_prints_and_logs_is_kept(capsys: pytest.CaptureFixture[str]) -> None:
    with bare_root(), unchanged():
        with overheard() as said:
            print("All keys loaded")
            logging.getLogger("a.library").warning("a key is missing")
            logging.warning("another is")
        assert said.getvalue().splitlines() == ["All keys loaded", "a key is missing", "another is"]
    assert capsys.readouterr() == ("", "")


def test_what_another_thread_says_meanwhile_arrives(capsys: pytest.CaptureFixture[str]) -> None:
    with bare_root(), overheard() as said:
        in_another_thread(lambda: print("a step"))
        in_another_thread(lambda: logging.getLogger("other").warning("a worker died"))
        in_another_thread(lambda: logging.getLogger("other").info("not shown by default"))
    assert said.getvalue() == ""
    assert capsys.readouterr() == ("a step\n", "a worker died\n")


def test_those_who_listen_at_the_same_time_leave_everything_as_it_was(
    capsys: pytest.CaptureFixture[str],
) -> None:
    first_in, second_asks, second_in = Event(), Event(), Barrier(2, timeout=DEADLINE_S)

    def first() -> str:
        with overheard() as said:
            first_in.set()
            assert second_asks.wait(DEADLINE_S)
            print("first")
        return said.getvalue()

    def second() -> str:
        assert first_in.wait(DEADLINE_S)
        second_asks.set()
        with overheard() as said:
            second_in.wait()  # for the lines of the test's own thread
            print("second")
        return said.getvalue()

    with unchanged(), ThreadPoolExecutor(2) as threads:
        found = [threads.submit(first), threads.submit(second)]
        assert second_asks.wait(DEADLINE_S)
        print("while one listens")
        assert found[0].result(DEADLINE_S) == "first\n"
        print("while the other does")
        second_in.wait()
        assert found[1].result(DEADLINE_S) == "second\n"
    assert capsys.readouterr().out == "while one listens\nwhile the other does\n"


def test_a_stream_that_somebody_kept_prints_afterwards(capsys: pytest.CaptureFixture[str]) -> None:
    with overheard() as said:
        kept = sys.stdout
        print("inside")
    print("afterwards", file=kept)
    assert (said.getvalue(), capsys.readouterr().out) == ("inside\n", "afterwards\n")


def test_a_replacement_made_meanwhile_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdout", sys.stdout)  # puts it back at the end
    replacement: Any = object()
    with overheard():
        sys.stdout = replacement
    assert sys.stdout is replacement


def test_nothing_stays_replaced_after_an_error() -> None:
    with unchanged():
        with pytest.raises(ValueError, match="torn"), overheard():
            raise ValueError("torn")
        with overheard() as said:  # and others may load
            print("again")
        assert said.getvalue() == "again\n"
