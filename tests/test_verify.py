"""`rollout verify`: the promise of the same result, kept and broken in every way that it tells apart."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import anyio
import pytest

from rollout.errors import UsageError
from rollout.verify import Cause, Verdict, verify

TESTS = Path(__file__).parent
DRIFT = "gym:verify_toys:verify/Drift-v0"
DEADLINE_S = 60


@pytest.fixture(autouse=True)
def _toys_in_the_working_directory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(TESTS))


def check(policy: Any, **settings: Any) -> Verdict:
    values = {"targets": DRIFT, "episodes": 16, "horizon": 200, "workers": 4} | settings

    async def main() -> Verdict:
        with anyio.fail_after(DEADLINE_S):
            return await verify(policy, **values)

    return anyio.run(main)


def command(*arguments: str) -> list[str]:
    return [sys.executable, "-c", "from rollout.cli import main; main()", "verify", *arguments]


def cli(*arguments: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command(*arguments),
        cwd=cwd,
        env=os.environ | {"PYTHONPATH": str(TESTS), "TMPDIR": str(cwd), "COLUMNS": "200"},
        capture_output=True,
        text=True,
        timeout=DEADLINE_S,
        check=False,
        stdin=subprocess.DEVNULL,
    )


def sample(policy: str, *more: str) -> list[str]:
    return [DRIFT, "--policy", policy, "--horizon", "200", "--workers", "4", *more]


def test_a_policy_that_keeps_the_promise_is_proved_on_batches_that_formed(tmp_path: Path) -> None:
    done = cli(*sample("verify_policies:Promise", "--episodes", "40"), cwd=tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    assert (
        "\nequal      40 episodes of 1 task: the same actions, rewards and endings, bit for bit\n"
        in done.stdout
    )
    assert "1 worker, batches of 1: " in done.stdout
    assert "4 workers, batches of up to 8: " in done.stdout
    assert "on average" in done.stdout
    assert "weak" not in done.stdout
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    "policy", ["verify_policies:Counter", "verify_policies:GlobalNumpy", "verify_modules:GlobalTorch"]
)
def test_what_episodes_share_is_told_from_rounding_by_its_size(policy: str) -> None:
    verdict = check(policy)
    assert not verdict.equal
    assert {found.cause for found in verdict.differences} == {Cause.STATE}
    found = verdict.differences[0]
    assert found.size is not None
    assert found.size > 1e-3
    assert found.digest[0] != found.digest[1]


def test_a_difference_names_its_first_step_its_size_and_its_dimension() -> None:
    verdict = check("verify_policies:Rounds")
    assert {found.cause for found in verdict.differences} == {Cause.ROUNDING}
    for found in verdict.differences:
        assert found.dimension == 1
        assert found.size is not None
        assert 0.9e-6 < found.size < 3.1e-6  # of batches of 2 to 4
        assert found.step is not None
        assert found.step >= 2
        assert found.decision == found.step // 2
        assert f"from step {found.step} on (decision {found.decision})" in found.what


def test_rounding_points_to_fixed_shapes_which_help_a_module(tmp_path: Path) -> None:
    done = cli(
        *sample("verify_modules:RoundingModule", "--episodes", "16", "--no-deterministic"), cwd=tmp_path
    )
    assert done.returncode == 1, done.stdout + done.stderr
    assert "likely     rounding that changes with the shape of the batch: --deterministic" in done.stdout
    assert done.stdout.count("\ndifferent  verify/Drift-v0 episode ") <= 5
    assert check("verify_modules:RoundingModule", deterministic=True).equal


def test_rounding_in_spite_of_fixed_shapes_is_the_policys_own(tmp_path: Path) -> None:
    done = cli(*sample("verify_policies:Rounds", "--episodes", "16", "--deterministic"), cwd=tmp_path)
    assert done.returncode == 1, done.stdout + done.stderr
    assert "although --deterministic is on" in done.stdout


def test_rounding_in_half_precision_is_larger() -> None:
    assert {f.cause for f in check("verify_policies:Amplifies", dtype="bf16").differences} == {Cause.ROUNDING}


@pytest.mark.parametrize(
    ("policy", "target"),
    [("Amplifies", DRIFT), ("Chooses", "gym:CartPole-v1")],
    ids=["size", "whole numbers"],
)
def test_what_the_size_does_not_tell_is_said_to_be_unclear(policy: str, target: str) -> None:
    verdict = check(f"verify_policies:{policy}", targets=target, episodes=30)
    assert {found.cause for found in verdict.differences} == {Cause.UNCLEAR}


@pytest.mark.parametrize(
    ("forgets", "what"),
    [
        ("position", "observation.state differs at its start (decision 0)"),
        ("wind", "observation.state differs after the same 4 actions (decision 2)"),
        ("reward", "actions, but rewards that are "),
        ("length", " with several"),
    ],
)
def test_a_simulator_that_remembers_is_blamed_and_not_the_policy(forgets: str, what: str) -> None:
    verdict = check("verify_policies:Promise", options={"forgets": forgets})
    assert not verdict.equal
    for found in verdict.differences:
        assert found.cause is Cause.SIMULATOR
        assert what in found.what


def test_episodes_that_cannot_be_measured_prove_nothing(tmp_path: Path) -> None:
    done = cli(*sample("verify_policies:Promise", "--set", "forgets=everything"), cwd=tmp_path)
    assert done.returncode == 1
    assert "episode 0 with 1 worker, batches of 1: RuntimeError: the arm fell off" in done.stdout
    assert "equal" not in done.stdout


def test_a_proof_without_batches_is_said_to_be_weak(tmp_path: Path) -> None:
    done = cli("gym:CartPole-v1", "--policy", "random", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "equal      2 episodes" in done.stdout
    assert "weak       this says little about batches" in done.stdout


def test_json_is_the_whole_output(tmp_path: Path) -> None:
    done = cli(*sample("verify_policies:Counter", "--episodes", "16", "--json"), cwd=tmp_path)
    assert done.returncode == 1, done.stderr
    verdict = json.loads(done.stdout, parse_constant=pytest.fail)
    assert verdict["equal"] is False
    assert verdict["together"]["workers"] == 4
    assert verdict["together"]["mean_batch"] > 1
    assert verdict["differences"][0]["cause"] == "state"


def test_a_policy_that_fails_is_blamed_with_its_traceback(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text("class Bad:\n    def infer(self, requests):\n        return 1 / 0\n")
    done = cli(DRIFT, "--policy", "mine:Bad", "--horizon", "9", cwd=tmp_path)
    assert done.returncode == 1
    assert done.stderr.splitlines()[-1].startswith("rollout: the policy raised ZeroDivisionError")


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ([DRIFT, "--policy", "random", "--workers", "1"], "at least 2"),
        ([DRIFT, "--policy", "expert", "--horizon", "9"], "policy 'expert' cannot act in gym"),
        ([DRIFT, "--policy", "random"], "--horizon"),
        ([DRIFT], "--policy"),
        ([], "target"),
        ([DRIFT, "--policy", "random", "--resume"], "--resume"),
    ],
)
def test_bad_usage_is_one_line_and_exit_code_2(arguments: list[str], says: str, tmp_path: Path) -> None:
    done = cli(*arguments, cwd=tmp_path)
    assert (done.returncode, done.stdout) == (2, "")
    assert len(done.stderr.splitlines()) == 1
    assert says in done.stderr


def test_settings_that_keep_results_are_refused() -> None:
    with pytest.raises(UsageError, match="out does not go with verify"):
        check("random", out="runs/x")


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_leaves_no_verdict_and_no_files(number: signal.Signals, code: int, tmp_path: Path) -> None:
    process = subprocess.Popen(
        command("gym:CartPole-v1", "--policy", "random", "--episodes", "100000"),
        cwd=tmp_path,
        env=os.environ | {"TMPDIR": str(tmp_path)},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    with process:
        try:
            wait_for_records(process, tmp_path)
            process.send_signal(number)
            out, err = process.communicate(timeout=DEADLINE_S)
        finally:
            process.kill()
    assert process.returncode == code
    assert err == f"rollout: stopped by {number.name}\n"
    assert "equal" not in out
    assert list(tmp_path.iterdir()) == []


def wait_for_records(process: subprocess.Popen[str], temporary: Path) -> None:
    deadline = time.monotonic() + DEADLINE_S
    while not any(
        len(file.read_bytes()) > 10_000 for file in temporary.glob("rollout-verify-*/episodes.jsonl")
    ):
        assert time.monotonic() < deadline
        assert process.poll() is None
        time.sleep(0.02)
