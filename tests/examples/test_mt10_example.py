"""The example: demonstrations, training and evaluation, end to end on one task."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import torch

import rollout
from rollout.errors import PolicyError, UsageError

ROOT = Path(__file__).parents[2]
DEADLINE_S = 120

pytestmark = pytest.mark.metaworld


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A policy that was trained on reach-v3 for a few seconds."""
    out = tmp_path_factory.mktemp("example") / "reach.safetensors"
    command = [
        sys.executable,
        "examples/train_mt10.py",
        "--target",
        "metaworld:reach-v3",
        "--episodes-per-task",
        "20",
    ]
    subprocess.run(
        [*command, "--epochs", "40", "--out", str(out)],
        cwd=ROOT,
        check=True,
        timeout=DEADLINE_S,
        stdout=subprocess.DEVNULL,
    )
    return out


@pytest.fixture(autouse=True)
def _in_the_root(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(ROOT))


def evaluate(checkpoint: Path, target: str = "metaworld:reach-v3", workers: int = 2) -> rollout.Report:
    return rollout.run(
        "examples.mt10_policy:load",
        target,
        episodes=5,
        workers=workers,
        policy_args={"checkpoint": str(checkpoint)},
    )


def test_a_policy_that_was_trained_for_seconds_succeeds_and_its_numbers_do_not_depend_on_the_workers(
    checkpoint: Path,
) -> None:
    report = evaluate(checkpoint)
    assert report.success_rate is not None
    assert report.success_rate > 0
    assert [e.digest for e in evaluate(checkpoint, workers=1).episodes] == [e.digest for e in report.episodes]


def test_a_checkpoint_holds_all_that_the_policy_is(checkpoint: Path, tmp_path: Path) -> None:
    from examples.mt10_policy import STATE, load

    policy = load(str(checkpoint))
    policy.save(tmp_path / "again.safetensors")
    again = load(str(tmp_path / "again.safetensors"))
    batch = {STATE: torch.randn(3, 39), "task": [policy.instructions[0]] * 3}
    assert torch.equal(policy(batch), again(batch))
    assert again.spec == policy.spec


def test_an_instruction_that_it_was_not_trained_on_is_an_error_and_not_a_guess(checkpoint: Path) -> None:
    with pytest.raises(PolicyError, match="was not trained on 'Push the puck to a goal'"):
        evaluate(checkpoint, "metaworld:push-v3")


@pytest.mark.parametrize(
    ("content", "says"), [(None, "train_mt10.py"), (b"not a checkpoint", "is no checkpoint")]
)
def test_a_missing_or_foreign_checkpoint_is_one_line(
    content: bytes | None, says: str, tmp_path: Path
) -> None:
    path = tmp_path / "x.safetensors"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(UsageError, match=says) as caught:
        evaluate(path)
    assert "\n" not in str(caught.value)
