"""One JSON object a line, for machines.

Every object has `event` and `time_s` (seconds since `start`). Numbers are finite or null.

- `start`: `targets` [str], `policy`, `workers`, `out` (str or null), `planned` and `resumed` (episodes),
  `tasks` [{`suite`, `task`, `task_id`, `instruction`, `planned`}].
- `progress`, every five seconds: `done`, `planned`, `successes`, `failures`, `errors`, `unknown` (measured,
  but without a success signal), `success_rate` and `ci95` [low, high] (Wilson; both null until something is
  measured), `steps`, `decisions`, `retries`, `steps_per_s`, `decisions_per_s`, `mean_batch` (or null),
  `policy_busy` (0 to 1), `bound` ("simulators", "policy", "workers", "longest episode", "start-up" or null) and
  `advice` (what would make it faster, or null), `eta_s` (or null; at most so many until an episode has ended),
  `workers` {state: how many}. Rates and `bound` are over the last ten seconds.
- `episode`, when one has ended: `record`, the very object that `episodes.jsonl` gets.
- `note`: `message`, a warning, a worker's death or a retry in words.
- `end`, once: what `progress` has, with rates over the whole run.

What Python code in this process prints to stdout meanwhile goes to stderr: every line on stdout is JSON.
"""

from __future__ import annotations

import contextlib
import sys
import time
from collections import Counter
from typing import Final, TextIO

from msgspec import Struct

from rollout.display.base import Counters, RunPlan, TaskCounters, WorkerState
from rollout.display.limits import remedy
from rollout.display.rates import Rates, RateWindow, eta_s, overall, whole_run
from rollout.results.efficiency import Limit
from rollout.results.files import encode_json
from rollout.results.stats import wilson
from rollout.types import EpisodeResult

__all__ = ["JsonDisplay"]

EVERY_S: Final = 5.0
# JSON allows them raw, and a terminal obeys them: a simulator's words must not reach it as commands.
_CONTROLS: Final = {code: f"\\u{code:04x}" for code in range(0x7F, 0xA0)}


class _Event(Struct, frozen=True, kw_only=True, tag_field="event", tag=lambda name: name.lower()):
    time_s: float


class _Task(Struct, frozen=True, kw_only=True):
    suite: str
    task: str
    task_id: int
    instruction: str
    planned: int


class Start(_Event, frozen=True, kw_only=True):
    targets: tuple[str, ...]
    policy: str
    workers: int
    out: str | None
    planned: int
    resumed: int
    tasks: tuple[_Task, ...]


class Progress(_Event, frozen=True, kw_only=True):
    done: int
    planned: int
    successes: int
    failures: int
    errors: int
    unknown: int
    success_rate: float | None
    ci95: tuple[float, float] | None
    steps: int
    decisions: int
    retries: int
    steps_per_s: float
    decisions_per_s: float
    mean_batch: float | None
    policy_busy: float
    bound: Limit | None
    advice: str | None
    eta_s: float | None
    workers: dict[WorkerState, int]


class Episode(_Event, frozen=True, kw_only=True):
    record: EpisodeResult


class Note(_Event, frozen=True, kw_only=True):
    message: str


class End(Progress, frozen=True, kw_only=True):
    """The last line."""


class JsonDisplay:
    """Writes the events that the module's docstring describes to `stream`."""

    interval_s: float = EVERY_S

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._window = RateWindow()
        self._redirected = contextlib.ExitStack()

    def start(self, plan: RunPlan, counters: Counters) -> None:
        self._counters = counters
        self._started_s = time.monotonic()
        self._window.observe(counters, self._started_s)
        if self._stream is sys.stdout:
            self._redirected.enter_context(contextlib.redirect_stdout(sys.stderr))
        self._send(
            Start(
                time_s=0.0,
                targets=plan.targets,
                policy=plan.policy,
                workers=plan.workers,
                out=plan.out,
                planned=counters.planned,
                resumed=counters.resumed,
                tasks=tuple(_task(task_id, task) for (_, task_id), task in counters.tasks.items()),
            )
        )

    def refresh(self) -> None:
        self._send(
            _progress(
                Progress,
                self._counters,
                self._window.observe(self._counters, time.monotonic()),
                self._elapsed_s(),
            )
        )

    def episode(self, result: EpisodeResult) -> None:
        self._send(Episode(time_s=self._elapsed_s(), record=result))

    def note(self, message: str) -> None:
        self._send(Note(time_s=self._elapsed_s(), message=message))

    def finish(self) -> None:
        self._redirected.close()
        elapsed_s = self._elapsed_s()
        self._send(_progress(End, self._counters, whole_run(self._counters, elapsed_s), elapsed_s))

    def _elapsed_s(self) -> float:
        return round(time.monotonic() - self._started_s, 6)

    def _send(self, event: _Event) -> None:
        self._stream.write(encode_json(event).decode().translate(_CONTROLS) + "\n")
        self._stream.flush()


def _task(task_id: int, task: TaskCounters) -> _Task:
    return _Task(
        suite=task.suite, task=task.task, task_id=task_id, instruction=task.instruction, planned=task.planned
    )


def _progress(kind: type[Progress], counters: Counters, rates: Rates | None, elapsed_s: float) -> Progress:
    total = overall(counters)
    measured = total.successes + total.failures
    return kind(
        time_s=elapsed_s,
        done=total.done,
        planned=total.planned,
        successes=total.successes,
        failures=total.failures,
        errors=total.errors,
        unknown=total.done - measured - total.errors,
        success_rate=total.successes / measured if measured else None,
        ci95=wilson(total.successes, measured),
        steps=counters.steps,
        decisions=counters.decisions,
        retries=counters.retries,
        steps_per_s=rates.steps_per_s if rates else 0.0,
        decisions_per_s=rates.decisions_per_s if rates else 0.0,
        mean_batch=rates.mean_batch if rates else None,
        policy_busy=rates.policy_busy if rates else 0.0,
        bound=rates.bound if rates else None,
        advice=remedy(rates.bound) if rates and rates.bound else None,
        eta_s=eta_s(counters, elapsed_s),
        workers=dict(Counter(counters.workers)),
    )
