"""A worker whose answer does not fit the question, while its tasks are listed."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

TESTS = Path(__file__).parent
FORGING = "gym:forging:toy/Count-v0"
DEADLINE_S = 60


@pytest.mark.parametrize("arguments", [("list",), ("run", "--policy", "zero")])
def test_a_worker_that_answers_something_else_is_a_line_and_no_traceback(arguments: tuple[str, ...]) -> None:
    command, *options = arguments
    ended = subprocess.run(
        [sys.executable, "-m", "rollout", command, FORGING, *options],
        env=os.environ | {"PYTHONPATH": str(TESTS)},
        capture_output=True,
        text=True,
        timeout=DEADLINE_S,
        check=False,
    )
    assert ended.returncode == 2, ended.stderr
    assert ended.stderr.splitlines()[-1] == (
        f"rollout: {FORGING}: expected Described, got Released while listing its tasks"
    )
    assert "Traceback" not in ended.stderr
