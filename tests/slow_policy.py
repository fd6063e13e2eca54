"""A policy that takes its time to be opened, as a large checkpoint does; registered by the tests that need it."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, ClassVar

from rollout import EvalConfig, PolicySpec, Request


class SlowPolicy:
    """`slow:FILE`: touches FILE when it begins to load, and is never done. `slow:ready` is at once."""

    locator: ClassVar[str] = "FILE"
    spec = PolicySpec(observation_keys=())
    versions: ClassVar[dict[str, str]] = {"slowness": "1.2"}

    @classmethod
    @contextmanager
    def opened(cls, locator: str, config: EvalConfig, /, *, weights: str = "a") -> Iterator[SlowPolicy]:
        if locator != "ready":
            Path(locator).touch()
            time.sleep(3600)
        cls.versions["checkpoint"] = weights
        yield cls()

    def open_session(self, episode: Any, task: Any) -> Any:
        return None

    def infer(self, requests: Sequence[Request]) -> Sequence[Any]:
        return [[[0.0, 0.0]] for _ in requests]
