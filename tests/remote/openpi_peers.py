"""Processes on the other side of openpi's protocol: `rollout serve`, and a server that does what upstream's does."""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from rollout import EpisodeSpec
from rollout.policies.base import Request
from rollout.spaces import Fields
from rollout.types import TaskInfo

HERE = Path(__file__).parent
DEADLINE_S = 60.0
ROLLOUT = str(Path(sys.executable).with_name("rollout"))


def search_path(*folders: str) -> str:
    """For PYTHONPATH: `folders`, this one, and what is there already."""
    return os.pathsep.join(filter(None, (*folders, str(HERE), os.environ.get("PYTHONPATH"))))


class Peer:
    """A server's process."""

    def __init__(self, process: subprocess.Popen[str], errors: Path, url: str) -> None:
        self.process, self.url = process, url
        self._errors = errors

    @property
    def port(self) -> int:
        return int(self.url.rpartition(":")[2])

    @property
    def stderr(self) -> str:
        return self._errors.read_text()

    def end(self, number: int = signal.SIGTERM) -> int:
        """Send a signal, and return the exit code."""
        self.process.send_signal(number)
        return self.process.wait(DEADLINE_S)


@contextmanager
def process(*command: str, cwd: Path | None = None, **environ: str) -> Iterator[Peer]:
    """A process that prints, as its first line, something that ends in a URL."""
    environ = {**os.environ, "PYTHONPATH": search_path(), **environ}
    with tempfile.TemporaryDirectory() as folder:
        errors = Path(folder) / "stderr"
        with (
            errors.open("w") as stderr,
            subprocess.Popen(
                command,
                env=environ,
                cwd=cwd,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=stderr,
                text=True,
            ) as running,
        ):
            try:
                assert running.stdout is not None
                ready, _, _ = select.select([running.stdout], [], [], DEADLINE_S)
                line = running.stdout.readline() if ready else ""
                assert "ws://" in line, f"{command}: {line}{errors.read_text()}"
                yield Peer(running, errors, line.split()[-1])
            finally:
                running.kill()


def serving(policy: str, *options: str, port: int = 0, **environ: str) -> Any:
    """`rollout serve`, in a process of its own. A context manager that gives a `Peer`."""
    return process(ROLLOUT, "serve", "--policy", policy, "--port", str(port), *options, **environ)


@contextmanager
def upstream(openpi_path: str, *arguments: str) -> Iterator[Peer]:
    """A server as openpi's is, which answers as `arguments` say."""
    with process(
        sys.executable, str(HERE / "upstream_server.py"), *arguments, PYTHONPATH=openpi_path
    ) as peer:
        yield peer


def openpi_client(openpi_path: str, url: str, *messages: dict[str, Any], key: str = "") -> list[Any]:
    """What openpi's own client gets: the server's metadata, then a reply to each of `messages`, or the error's text."""
    host, _, port = url.removeprefix("ws://").rpartition(":")
    command = [sys.executable, str(HERE / "openpi_client_calls.py"), host, port, key]
    done = subprocess.run(
        command,
        input=json.dumps(messages),
        env={**os.environ, "PYTHONPATH": openpi_path},
        capture_output=True,
        text=True,
        check=False,
        timeout=DEADLINE_S,
    )
    assert done.returncode == 0, done.stderr
    answers: list[Any] = json.loads(done.stdout)
    return answers


def request(observation: dict[str, Any], session: Any = None, decision: int = 0, episode: int = 0) -> Request:
    """A decision of an episode of LIBERO."""
    spec = EpisodeSpec(suite="libero:spatial", task="bowl", task_id=0, episode=episode, seed=7, horizon=220)
    return Request(spec, TASK, decision, decision, session, {"task": TASK.instruction, **observation})


TASK = TaskInfo(
    suite="libero:spatial",
    task="bowl",
    task_id=0,
    instruction="pick up the black bowl",
    horizon=220,
    fps=20,
    action_space=Fields(()),
    observation_space={},
    success_rule=None,
)


def libero_observation(size: int = 224) -> dict[str, Any]:
    """As LIBERO's adapter gives it."""
    rng = np.random.default_rng(0)
    return {
        "observation.images.image": rng.integers(0, 256, (size, size, 3), np.uint8),
        "observation.images.image2": rng.integers(0, 256, (size, size, 3), np.uint8),
        "observation.state": rng.normal(size=8).astype(np.float32),
    }
