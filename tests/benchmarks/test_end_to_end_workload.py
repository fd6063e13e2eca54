"""The end-to-end workload's contenders run the same episodes, and peers that cannot be had say why in one line."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from benchmarks import peers, process
from benchmarks.evaluations import Evaluation, Recorded, record
from benchmarks.job import Unavailable
from benchmarks.process import run_contender
from benchmarks.small_policy import SmallPolicy
from benchmarks.workload import Case, Contender
from benchmarks.workloads.end_to_end import LEROBOT, LOOP, OURSELVES, WORKLOAD

METAWORLD = {
    "family": "metaworld",
    "tasks": ["reach-v3"],
    "episodes": 1,
    "chunk": 3,
    "horizon": 5,
    "size": 64,
}
LIBERO = {"family": "libero", "tasks": [0], "episodes": 1, "chunk": 2, "horizon": 3, "size": 64}


def _records(contender: Contender, parameters: dict[str, object]) -> object:
    case = Case(name="a few steps", contenders=(contender,), parameters=parameters, timeout_s=300)
    return run_contender(WORKLOAD.name, case, contender, seconds=1).extra["records"]


def test_our_records_tell_every_episode() -> None:
    pytest.importorskip("metaworld")
    [[task, episode, steps, success, _, digest]] = _records(OURSELVES, METAWORLD)  # type: ignore[misc]
    assert (task, episode, steps, success) == (0, 0, 5, False)
    assert len(digest) == 12


def test_a_plain_loop_on_libero_runs_the_episodes_that_ours_runs() -> None:
    pytest.importorskip("libero")
    assert _records(LOOP, LIBERO) == _records(OURSELVES, LIBERO)


@pytest.mark.skipif(
    "ROLLOUT_BENCH_PEER_LEROBOT" not in os.environ, reason="needs an environment with LeRobot 0.6.1"
)
@pytest.mark.parametrize("parameters", [METAWORLD | {"size": 480}, LIBERO])
def test_lerobot_eval_runs_the_episodes_that_ours_runs(parameters: dict[str, object]) -> None:
    assert _records(LEROBOT, {**parameters, "batch": 1}) == _records(OURSELVES, parameters)


def test_the_small_policy_decides_alike_alone_and_in_a_batch() -> None:
    policy = SmallPolicy(cameras=2, states=8, actions=7, chunk=10)
    draw = torch.Generator().manual_seed(0)
    pictures = [torch.rand(3, 3, 256, 256, generator=draw) for _ in range(2)]
    state = torch.randn(3, 8, generator=draw)
    with torch.inference_mode():
        together = policy(pictures, state)
        alone = policy([picture[1:2] for picture in pictures], state[1:2])
    assert together.shape == (3, 10, 7)
    assert torch.equal(together[1:2], alone)
    assert together.std() > 0.1  # it moves


def test_recorded_actions_are_found_again_and_end_with_the_last_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    evaluation = Evaluation.of(LIBERO)
    with pytest.raises(Unavailable, match="measure rollout first"):
        Recorded.find(evaluation)
    actions = np.arange(14, dtype=np.float32).reshape(2, 7)
    Recorded({(0, 0): actions}).save(evaluation)
    chunk = Recorded.find(evaluation).chunk(0, 0, 1, 3)
    np.testing.assert_array_equal(chunk, [actions[1]] * 3)


def test_a_record_depends_on_what_was_executed() -> None:
    actions = np.zeros((4, 7), np.float32)
    assert record(0, 1, actions, True, 1.0)[:5] == (0, 1, 4, True, 1.0)
    assert record(0, 1, actions, True, 1.0) != record(0, 1, actions + 1, True, 1.0)


def test_a_given_interpreter_without_the_peer_is_refused_in_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ROLLOUT_BENCH_PEER_ENVPOOL", sys.executable)
    with pytest.raises(Unavailable, match=r"^ROLLOUT_BENCH_PEER_ENVPOOL=.*No module named 'envpool'$"):
        peers.interpreter("envpool")


def test_a_peer_without_its_python_says_which_one_it_needs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("ROLLOUT_BENCH_PEER_LEROBOT", raising=False)
    with pytest.raises(Unavailable, match=r"^lerobot needs python3\.12"):
        peers.interpreter("lerobot")


def _executable(path: Path, script: str) -> str:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)
    return str(path)


def test_a_python_that_fails_is_not_installed_and_pyenv_is_asked_for_another(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    monkeypatch.delenv("ROLLOUT_BENCH_PEER_LEROBOT", raising=False)
    _executable(tmp_path / "bin" / "python3.12", "exit 127")
    remedy = r"^lerobot needs python3\.12.*: install Python 3\.12, or set ROLLOUT_BENCH_PEER_LEROBOT=/path/to/python$"
    with pytest.raises(Unavailable, match=remedy):
        peers.interpreter("lerobot")
    _executable(tmp_path / "bin" / "pyenv", f"echo '{tmp_path}'")
    _executable(tmp_path / "versions" / "3.11.7" / "bin" / "python", "exit 0")
    _executable(tmp_path / "versions" / "3.12.0" / "bin" / "python", "exit 1")
    works = _executable(tmp_path / "versions" / "3.12.1" / "bin" / "python", "exit 0")
    assert peers._base() == works


def test_a_peer_gets_the_harness_alone_and_not_the_path_of_the_user(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", "/of/the/user")
    assert process._environ(LEROBOT)["PYTHONPATH"] == str(process.FOLDER)
    assert process._environ(OURSELVES)["PYTHONPATH"] == f"{process.FOLDER}{os.pathsep}/of/the/user"


@pytest.mark.parametrize("module", ["lerobot_eval", "vla_eval", "envpool"])
def test_peers_import_nothing_of_ours_but_the_benchmarks(module: str) -> None:
    code = (
        f"import sys, benchmarks.contenders.{module}\n"
        "print([name for name in sys.modules if name.split('.')[0] in ('rollout', 'msgspec')])"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        check=False,
        env={**os.environ, "PYTHONPATH": str(process.FOLDER)},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert (done.returncode, done.stdout) == (0, "[]\n"), done.stderr
