"""What the chaos tests share: a killer of workers, and what of a record must not depend on who was killed."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Self

from rollout import EpisodeResult

SEED = int(os.environ.get("CHAOS_SEED", "5"))
"""Of all that is random here; the tests tell it where they fail."""

DEADLINE_S = 120
GONE_WITHIN_S = 5.0

Shot = tuple[int, signal.Signals]


class Killer:
    """Sends a random signal to a random process of `targets()`, again and again, from a thread of its own.

    `with Killer(…)`: until the block is left. What was chosen is in `shots`.
    """

    def __init__(
        self,
        targets: Callable[[], Sequence[int]],
        signals: Sequence[signal.Signals],
        *,
        every_s: float,
        seed: int,
        most: int = sys.maxsize,
    ) -> None:
        self.shots: list[Shot] = []
        self._targets, self._signals, self._every_s, self._most = targets, signals, every_s, most
        self._random = random.Random(seed)
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._shoot)

    def _shoot(self) -> None:
        while len(self.shots) < self._most and not self._over.wait(
            self._random.uniform(0, 2 * self._every_s)
        ):
            targets = self._targets()
            if targets:
                pid, number = self._random.choice(targets), self._random.choice(self._signals)
                with suppress(ProcessLookupError):
                    os.kill(pid, number)
                    self.shots.append((pid, number))

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()


class Run:
    """`rollout run` in `cwd`, with results in `run`; found again by a mark in its environment."""

    def __init__(self, cwd: Path, *arguments: str, **environ: str) -> None:
        self.mark = uuid.uuid4().hex
        path = os.pathsep.join([str(Path(__file__).parent), os.environ.get("PYTHONPATH", "")])
        ours = {"PYTHONPATH": path, "CHAOS_MARK": self.mark, "CHAOS_STEP_S": "0.002"}
        self._log = cwd / f"{self.mark}.log"
        with self._log.open("w") as log:  # not a pipe, which what is left behind would keep open
            self._process = subprocess.Popen(
                [sys.executable, "-m", "rollout", "run", *arguments, "--display", "none"],
                cwd=cwd,
                env=os.environ | ours | environ,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )

    @property
    def forkservers(self) -> list[int]:
        """One, or none just now."""
        return children(self._process.pid)

    @property
    def workers(self) -> list[int]:
        """The workers that are alive."""
        return [worker for forkserver in self.forkservers for worker in children(forkserver)]

    def wait(self, within_s: float = DEADLINE_S) -> int:
        """The exit code; nothing may be left of it."""
        code = self._process.wait(within_s)
        wait_until(lambda: not marked(self.mark), GONE_WITHIN_S, lambda: f"left: {marked(self.mark)}")
        return code

    def kill(self, *, after_s: float) -> None:
        """SIGKILL, unless it is done sooner."""
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(after_s)
        self._process.kill()
        self.wait()

    def finish(self, within_s: float = DEADLINE_S) -> None:
        """Wait for a good end."""
        code = self.wait(within_s)
        assert code == 0, self._log.read_text()


def same(episodes: Iterable[EpisodeResult]) -> list[tuple[Any, ...]]:
    """All of the records that must not depend on how often, and by whose death, an episode was begun anew."""
    return [(*e.key, e.seed, e.outcome, e.steps, e.sum_reward, e.max_reward, e.digest) for e in episodes]


def children(pid: int) -> list[int]:
    """The children of process `pid`; none where it is gone. Not every kernel has a file that lists them."""
    return [int(p.name) for p in Path("/proc").iterdir() if p.name.isdigit() and _parent(p) == pid]


def wait_until(condition: Callable[[], bool], within_s: float, story: Callable[[], str]) -> None:
    """Until `condition` holds; `story` tells of it where it does not in time."""
    deadline = time.monotonic() + within_s
    while not condition():
        assert time.monotonic() < deadline, story()
        time.sleep(0.02)


def marked(mark: str) -> list[int]:
    """The processes with `CHAOS_MARK=mark` in their environment: a run's, and whatever it started."""
    wanted = f"CHAOS_MARK={mark}".encode()
    return [int(p.name) for p in Path("/proc").iterdir() if p.name.isdigit() and wanted in _environ(p)]


def _environ(process: Path) -> list[bytes]:
    try:
        return (process / "environ").read_bytes().split(b"\0")
    except OSError:  # gone, a zombie, or somebody else's
        return []


def _parent(process: Path) -> int | None:
    try:
        return int((process / "stat").read_text().rpartition(")")[2].split()[1])
    except OSError:
        return None
