"""How the tests of this folder run an environment of `badenvs` or `siblings`, and policies that prove a point."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from threading import Event
from typing import Any

import numpy as np

import rollout
from rollout import EpisodeSpec, PolicySpec, Report, Request

BOX2 = np.zeros((1, 2), np.float32)


def measure(name: str, policy: Any = "zero", **settings: Any) -> Report:
    """Six episodes with the seeds 0 to 5 on two workers, unless `settings` say otherwise."""
    module = "siblings" if name.startswith("sib/") else "badenvs"
    env_id = name if "/" in name else f"bad/{name}"
    settings = {"episodes": 6, "seed": 0, "workers": 2, "horizon": 100} | settings
    return rollout.run(policy, f"gym:{module}:{env_id}-v0", **settings)


def errors(report: Report) -> dict[int, str]:
    """Episode -> "type: message", of those that could not be measured."""
    return {e.episode: f"{e.error.type}: {e.error.message}" for e in report.episodes if e.error is not None}


def column(report: Report, field: str) -> list[Any]:
    """One field of all records."""
    return [getattr(episode, field) for episode in report.episodes]


def assert_others_succeed(report: Report, bad: Sequence[int] = (1, 5)) -> None:
    """The episodes `bad` are errors, and every other one is a success and the whole of the rate."""
    assert sorted(errors(report)) == list(bad)
    assert {e.success for e in report.episodes if e.error is None} == {True}
    assert report.success_rate == 1.0
    assert report.summary.overall.n_error == len(bad)


def logged(path: Path, event: str) -> list[dict[str, Any]]:
    """The lines of `BADENVS_LOG` that tell of `event`."""
    if not path.exists():
        return []
    return [line for text in path.read_text().splitlines() if (line := json.loads(text))["event"] == event]


class Gate:
    """Holds a policy's first forward until `together` episodes have begun: the next one is a batch of several."""

    def __init__(self, together: int) -> None:
        self._awaited, self._begun = together, Event()
        if not together:
            self._begun.set()

    def begin(self) -> None:
        """An episode begins."""
        self._awaited -= 1
        if self._awaited <= 0:
            self._begun.set()

    def wait(self) -> None:
        """Until enough have begun."""
        assert self._begun.wait(60), "fewer episodes at once than the test needs"


class Acting:
    """Answers each request by `act(request)`, one action or a chunk; keeps what it was shown."""

    def __init__(
        self, act: Callable[[Request], Any] = lambda request: BOX2[0], *, together: int = 0, **spec: Any
    ) -> None:
        self.spec = PolicySpec(**spec)
        self.act = act
        self.gate = Gate(together)
        self.seen: dict[tuple[int, int], dict[str, Any]] = {}  # (episode, step) -> the very observation
        self.sizes: list[int] = []

    def open_session(self, episode: EpisodeSpec, task: Any) -> None:
        self.gate.begin()

    def infer(self, requests: Sequence[Request]) -> list[Any]:
        self.gate.wait()
        self.sizes.append(len(requests))
        for request in requests:
            self.seen[request.episode.episode, request.step] = request.observation
        return [np.asarray(self.act(request)) for request in requests]
