"""Tests that need a simulator or the GL libraries are skipped where those are missing.

`ROLLOUT_TEST_REQUIRE=gl,libero,metaworld` turns these skips into failures: on a machine that is meant to have
everything, a skipped test proves nothing.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from rollout.envs.libero_files import find_assets
from rollout.envs.registry import load_simulator, missing_requirement
from rollout.errors import UsageError
from rollout.rendering import choose_backend, worker_environment


@cache
def lacking(what: str) -> str | None:
    """Why tests marked `what` cannot run here; None where they can."""
    if what == "gl":
        return choose_backend("cpu").problem
    missing = missing_requirement(load_simulator(what))
    if what == "libero" and missing is None:
        try:
            find_assets()
        except UsageError as exc:
            return str(exc)
    return missing


# Longest first, or one process is left with the longest file at the end while the others have nothing to do.
LONGEST = (
    "parity/test_parity.py",
    "envs/test_contract.py",
    "sim/test_silent_exit.py",
    "envs/test_libero.py",
    "examples/test_mt10_example.py",
    "remote/test_serve.py",
    "sim/test_preload.py",
    "parity/test_libero_success.py",
    "chaos/test_chaos.py",
)


def pytest_xdist_auto_num_workers(config: pytest.Config) -> int:
    """A process a core, as far as memory holds simulators; none beside this one for files, to see them as they go."""
    only_files = all(".py" in argument for argument in config.args)
    return 0 if only_files else min(4, len(os.sched_getaffinity(0)))


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    def rank(item: pytest.Item) -> int:
        path = item.path.as_posix()
        return next((i for i, name in enumerate(LONGEST) if path.endswith(name)), len(LONGEST))

    items.sort(key=rank)


def pytest_runtest_setup(item: pytest.Item) -> None:
    for what in ("gl", "aloha", "libero", "metaworld", "pusht"):
        reason = lacking(what) if item.get_closest_marker(what) else None
        if reason is None:
            continue
        if what in os.environ.get("ROLLOUT_TEST_REQUIRE", "").split(","):
            pytest.fail(f"ROLLOUT_TEST_REQUIRE names {what}: {reason}", pytrace=False)
        pytest.skip(reason)


@pytest.fixture(scope="session")
def in_child() -> Callable[..., Any]:
    """Run a script in an interpreter of its own, as a worker is, and decode its last line from JSON.

    Rendering belongs there: two GL contexts in one process disturb each other's pictures, and simulators
    print, warn and change the process's environment.
    """

    def run(script: Path, *arguments: str, timeout_s: float = 300.0, **environ: str) -> Any:
        backend = choose_backend("cpu")
        env = {**os.environ, **worker_environment(backend, 0), **environ}
        done = subprocess.run(
            [sys.executable, str(script), *arguments],
            env=env,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=timeout_s,
            check=False,
        )
        assert done.returncode == 0, f"{script.name} {' '.join(arguments)}:\n{done.stdout}\n{done.stderr}"
        assert "Traceback" not in done.stderr, done.stderr
        return json.loads(done.stdout.splitlines()[-1])

    return run
