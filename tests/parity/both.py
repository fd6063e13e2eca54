"""One case through both loops, and what differs."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import msgspec

from libero_loop import CHUNK, Case
from rollout.rendering import choose_backend, worker_environment

HERE = Path(__file__).parent
DEADLINE_S = 900.0


def differences(
    family: str, case: Case, reference: list[dict[str, Any]], engine: list[dict[str, Any]]
) -> list[str]:
    """One line for each thing that is not the reference's bit for bit; empty where all is."""
    found = []
    for number, (theirs, ours) in enumerate(zip(reference, engine, strict=True)):
        where = f"{family} {case.suite} {case.task_id} episode {number}"
        if theirs["digest"] != ours["digest"]:
            found.append(f"{where}: digest")
        for what in ("physics", "frames"):
            found += [
                f"{where}: {what} at step {step}"
                for step, value in ours[what].items()
                if theirs[what][int(step)] != value
            ]
    return found


def decided_on(case: Case, n_steps: int) -> set[int]:
    """The steps whose frames a policy gets to see in an episode of `n_steps`: those of each decision's history."""
    decisions = range(CHUNK, n_steps, CHUNK)
    return {0} | {step - ago for step in decisions for ago in range(case.n_obs_steps)}


def reference(family: str, case: Case) -> list[dict[str, Any]]:
    """The plain loop's episodes."""
    return _in_child(family, "plain", case, b"")


def engine(family: str, case: Case, theirs: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The same actions through the engine."""
    return _in_child(family, "ours", case, msgspec.json.encode([episode["actions"] for episode in theirs]))


def _in_child(family: str, side: str, case: Case, sent: bytes) -> list[dict[str, Any]]:
    command = [sys.executable, str(HERE / f"{family}_loop.py"), side, msgspec.json.encode(case).decode()]
    env = {**os.environ, **worker_environment(choose_backend("cpu"), 0), "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, input=sent, env=env, capture_output=True, timeout=DEADLINE_S, check=False)
    if done.returncode:
        raise RuntimeError(f"{' '.join(command)}:\n{done.stderr.decode()[-4000:]}")
    told: list[dict[str, Any]] = json.loads(done.stdout.splitlines()[-1])
    return told
