"""Policies by `name:locator`: what is registered opens them."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

import rollout
from rollout.errors import UsageError
from rollout.results.journal import read_journal

COUNT = "gym:toys:toy/Count-v0"
TESTS = Path(__file__).parents[1]


@pytest.fixture(autouse=True)
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """What installing such a policy leaves behind, as far as `importlib.metadata` reads it."""
    info = tmp_path / "slow-1.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Name: slow\nVersion: 1\n")
    (info / "entry_points.txt").write_text("[rollout.policies]\nslow = slow_policy:SlowPolicy\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    return tmp_path


def test_the_locator_and_the_arguments_reach_what_opens_it_and_its_versions_the_record(
    tmp_path: Path,
) -> None:
    arguments = {"weights": "b"}
    rollout.run("slow:ready", COUNT, episodes=1, workers=1, policy_args=arguments, out=tmp_path / "run")
    header, _ = read_journal(tmp_path / "run")
    assert header.policy == "slow:ready"
    assert header.versions["slowness"] == "1.2"
    assert header.config["checkpoint"] == "b"


def test_a_run_does_not_go_on_with_other_weights(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plan = {"targets": COUNT, "episodes": 1, "workers": 1, "out": tmp_path / "run"}
    rollout.run("slow:ready", **plan)
    import slow_policy

    original = slow_policy.SlowPolicy.opened
    monkeypatch.setattr(  # the same folder, trained further
        slow_policy.SlowPolicy, "opened", lambda locator, config: original(locator, config, weights="b")
    )
    with pytest.raises(UsageError, match='checkpoint "a" -> "b"'):
        rollout.run("slow:ready", **plan, resume=True)


@pytest.mark.parametrize(
    ("spec", "arguments", "says"),
    [
        ("slow", {}, "slow:FILE"),
        ("slow:", {}, "slow"),
        ("slow:ready", {"weihgts": "b"}, "weihgts"),
    ],
)
def test_what_cannot_be_opened_is_one_line(spec: str, arguments: dict[str, str], says: str) -> None:
    with pytest.raises(UsageError, match=says) as caught:
        rollout.run(spec, COUNT, episodes=1, workers=1, policy_args=arguments)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("command", ["run", "verify"])
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_policy_that_takes_long_to_load_does_not_keep_a_signal_from_ending_the_run(
    command: str, number: signal.Signals, tmp_path: Path
) -> None:
    begun = tmp_path / "begun"
    code = "from rollout.cli import main; main()"
    environ = {**os.environ, "PYTHONPATH": os.pathsep.join([str(tmp_path), str(TESTS)])}
    with subprocess.Popen(
        [sys.executable, "-c", code, command, COUNT, "--policy", f"slow:{begun}"],
        cwd=tmp_path,
        env=environ,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    ) as process:
        deadline = time.monotonic() + 60
        while not begun.exists():
            assert process.poll() is None
            assert time.monotonic() < deadline
            time.sleep(0.02)
        process.send_signal(number)
        output, _ = process.communicate(timeout=20)
    assert process.returncode == 128 + number
    assert output == f"rollout: stopped by {number.name}\n"
