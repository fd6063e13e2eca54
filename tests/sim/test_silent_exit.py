"""Real simulators, real GL contexts: however a run ends, nothing but its own words is printed."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from itertools import product
from pathlib import Path
from typing import Any

import pytest

from rollout.envs.gl import VARIABLES

pytestmark = pytest.mark.gl

TARGETS = {"libero": "libero:object", "metaworld": "metaworld:reach-v3"}
WATCHING = """
import numpy as np
import rollout


class Watching:
    spec = rollout.PolicySpec()  # reads every camera

    def infer(self, requests):
        return [np.zeros((1, *request.task.action_space.shape), np.float32) for request in requests]
"""
# Two Ctrl-C at once, while robosuite renders: the context is in the frames of the traceback until the very end.
INTERRUPTED = """
import signal

import rollout
from watching import Watching

# What runs in the background of a shell is started with Ctrl-C ignored.
signal.signal(signal.SIGINT, signal.default_int_handler)


class Interrupting(Watching):
    def infer(self, requests):
        from robosuite.utils.binding_utils import MjRenderContext

        def read_pixels(self, *args, **kwargs):
            signal.raise_signal(signal.SIGINT)
            signal.raise_signal(signal.SIGINT)

        MjRenderContext.read_pixels = read_pixels
        return super().infer(requests)


rollout.run(Interrupting(), "libero:object", tasks=(0,), episodes=1, horizon=3, workers=0, options={"reset": "hard"})
"""
SCRIPT = """
import sys

import rollout
from watching import Watching

report = rollout.run(Watching(), sys.argv[1], tasks=(0,), episodes=2, horizon=2, workers=0)
print(*[episode.outcome for episode in report.episodes])
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A directory with a policy that watches, and scripts that use it."""
    for name, text in (("watching", WATCHING), ("interrupted", INTERRUPTED), ("script", SCRIPT)):
        (tmp_path / f"{name}.py").write_text(text)
    return tmp_path


def run(folder: Path, mujoco_gl: str, *command: str) -> subprocess.CompletedProcess[str]:
    env = {name: value for name, value in os.environ.items() if name not in VARIABLES}
    return subprocess.run(
        [sys.executable, *command],
        cwd=folder,
        env=env | {"MUJOCO_GL": mujoco_gl, "PYTHONPATH": str(folder)},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )


def cases() -> list[Any]:
    """Every target, back end and number of workers; the quick half has every pair of them."""
    found = []
    for (family, target), mujoco_gl, workers in product(TARGETS.items(), ("egl", "osmesa"), ("0", "2")):
        odd = (family == "libero") ^ (mujoco_gl == "egl") ^ (workers == "0")
        marks = [getattr(pytest.mark, family), *([] if odd else [pytest.mark.soak])]
        found.append(pytest.param(target, mujoco_gl, workers, marks=marks))
    return found


@pytest.mark.parametrize(("target", "mujoco_gl", "workers"), cases())
def test_the_command_line_prints_nothing_of_the_simulators(
    folder: Path, target: str, mujoco_gl: str, workers: str
) -> None:
    settings = ["--policy", "watching:Watching", "--tasks", "0", "--episodes", "2", "--horizon", "2"]
    command = ["-c", "from rollout.cli import main; main()", "run", target, *settings]
    done = run(folder, mujoco_gl, *command, "--display", "json", "--workers", workers)
    assert (done.returncode, done.stderr) == (0, "")
    assert [json.loads(line) for line in done.stdout.splitlines()]


@pytest.mark.parametrize(
    "target", [pytest.param(target, marks=getattr(pytest.mark, family)) for family, target in TARGETS.items()]
)
def test_a_script_prints_nothing_but_its_own(folder: Path, target: str) -> None:
    done = run(folder, "egl", "script.py", target)
    assert (done.returncode, done.stderr, done.stdout) == (0, "", "failure failure\n")


@pytest.mark.libero
def test_an_interrupted_script_prints_the_interrupt_alone(folder: Path) -> None:
    done = run(folder, "egl", "interrupted.py")
    assert done.returncode != 0
    assert done.stderr.endswith("KeyboardInterrupt\n")
    assert "Exception ignored" not in done.stderr
