"""A terminal that tests can read, and runs to show on it."""

from __future__ import annotations

import io
import re
from collections.abc import Callable
from typing import Any

import pytest

from rollout.display.base import Counters, RunPlan, TaskCounters, WorkerState
from rollout.types import EpisodeFailure, EpisodeResult, Outcome

CODE = re.compile(r"\x1b\[([?\d;]*)([A-Za-z])|\r|\n|[^\x1b\r\n]+")


class Screen(io.StringIO):
    """A terminal of unlimited height that knows the codes of the live view, and fails on any other."""

    def __init__(self) -> None:
        super().__init__()
        self.lines = [""]
        self.row = 0
        self.column = 0
        self.cursor_visible = True
        self.colours = False

    def write(self, text: str) -> int:
        assert "".join(match.group() for match in CODE.finditer(text)) == text, f"unknown codes in {text!r}"
        for match in CODE.finditer(text):
            self._take(match)
        return super().write(text)

    def _take(self, match: re.Match[str]) -> None:
        token, arguments, code = match.group(), match.group(1), match.group(2)
        if token == "\r":
            self.column = 0
        elif token == "\n":
            self.row, self.column = self.row + 1, 0
            self.lines += [""] * (self.row + 1 - len(self.lines))
        elif code == "A":
            self.row -= int(arguments or 1)
            assert self.row >= 0
        elif code == "K":
            assert arguments == "2"
            self.lines[self.row] = ""
        elif code in ("h", "l"):
            assert arguments == "?25"
            self.cursor_visible = code == "h"
        elif code == "m":
            numbers = [int(number) for number in arguments.split(";") if number]
            self.colours = self.colours or any(30 <= number < 50 for number in numbers)
        else:
            assert code is None, f"unknown code {token!r}"
            line = self.lines[self.row].ljust(self.column)
            self.lines[self.row] = line[: self.column] + token + line[self.column + len(token) :]
            self.column += len(token)

    @property
    def shown(self) -> list[str]:
        """What a user reads, without blanks at the ends."""
        lines = [line.rstrip() for line in self.lines]
        while lines and not lines[-1]:
            lines.pop()
        return lines


@pytest.fixture
def screen() -> Screen:
    return Screen()


def build_counters(
    n_tasks: int = 3,
    *,
    episodes: int = 4,
    workers: int = 2,
    suite: str = "metaworld:mt10",
    name: Callable[[int], str] = "task-{}-v3".format,
    instruction: Callable[[int], str] = lambda index: "",
) -> Counters:
    tasks = {
        (suite, index): TaskCounters(
            suite=suite, task=name(index), instruction=instruction(index), planned=episodes
        )
        for index in range(n_tasks)
    }
    return Counters(tasks=tasks, planned=n_tasks * episodes, workers=[WorkerState.STEPPING] * workers)


def end_episodes(
    counters: Counters, task: int, *, successes: int = 0, failures: int = 0, errors: int = 0, unknown: int = 0
) -> None:
    row = list(counters.tasks.values())[task]
    row.successes += successes
    row.failures += failures
    row.errors += errors
    row.done += successes + failures + errors + unknown
    counters.done += successes + failures + errors + unknown


def build_plan(**changes: Any) -> RunPlan:
    return RunPlan(
        **{"targets": ("metaworld:mt10",), "policy": "expert", "specs": (), "workers": 2, "out": "runs/first"}
        | changes
    )


def build_result(**changes: Any) -> EpisodeResult:
    return EpisodeResult(
        **{
            "suite": "metaworld:mt10",
            "task": "reach-v3",
            "task_id": 0,
            "episode": 3,
            "seed": 1003,
            "init_state": None,
            "outcome": Outcome.SUCCESS,
            "success": True,
            "steps": 60,
            "sum_reward": 12.5,
            "max_reward": 1.0,
            "terminated": True,
            "truncated": False,
            "attempts": 1,
            "digest": "00ff",
        }
        | changes
    )


def build_error(message: str, **changes: Any) -> EpisodeResult:
    return build_result(
        outcome=Outcome.ERROR,
        success=None,
        digest=None,
        sum_reward=None,
        max_reward=None,
        error=EpisodeFailure(type="WorkerDied", message=message),
        **changes,
    )


class Make:
    """The builders above, for tests that get them as a fixture."""

    counters = staticmethod(build_counters)
    end = staticmethod(end_episodes)
    plan = staticmethod(build_plan)
    result = staticmethod(build_result)
    error = staticmethod(build_error)


@pytest.fixture
def make() -> Make:
    return Make()


@pytest.fixture(autouse=True)
def an_ordinary_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever the machine that runs the tests sets: Rich reads all of these."""
    monkeypatch.setenv("TERM", "xterm-256color")
    for name in (
        "NO_COLOR",
        "FORCE_COLOR",
        "COLORTERM",
        "COLUMNS",
        "LINES",
        "TTY_COMPATIBLE",
        "TTY_INTERACTIVE",
    ):
        monkeypatch.delenv(name, raising=False)
