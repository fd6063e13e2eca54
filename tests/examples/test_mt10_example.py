"""The example: demonstrations, training and evaluation, end to end on one task; the same digests on all ten."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import anyio
import pytest
import torch
from safetensors.torch import save

import rollout
from rollout.errors import PolicyError, UsageError

ROOT = Path(__file__).parents[2]
DEADLINE_S = 120

# From the same demonstrations: collecting them takes longest. Of 3 episodes of each task at least one succeeds.
BEGINNERS = """
import sys
from pathlib import Path
from train_mt10 import HEADS, Samples, collect, train
demonstrations = collect("metaworld:mt10", 3)
instructions = list(dict.fromkeys(each.instruction for each in demonstrations))
samples = Samples.of(demonstrations, instructions)
for head in HEADS:
    train(samples, instructions, head=head, epochs=1, seed=0).save(Path(sys.argv[1]) / f"{head}.safetensors")
"""

pytestmark = pytest.mark.metaworld


def train(out: Path, *arguments: str) -> Path:
    subprocess.run(
        [sys.executable, "examples/train_mt10.py", *arguments, "--out", str(out)],
        cwd=ROOT,
        check=True,
        timeout=DEADLINE_S,
        stdout=subprocess.DEVNULL,
    )
    return out


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A policy that was trained on reach-v3 for a few seconds."""
    out = tmp_path_factory.mktemp("example") / "reach.safetensors"
    return train(out, "--target", "metaworld:reach-v3", "--episodes-per-task", "20", "--epochs", "40")


@pytest.fixture(scope="module")
def beginners(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Of each head a policy that knows all ten tasks, and none of them well."""
    out = tmp_path_factory.mktemp("beginners")
    subprocess.run(
        [sys.executable, "-c", BEGINNERS, str(out)],
        cwd=ROOT / "examples",
        check=True,
        timeout=DEADLINE_S,
        stdout=subprocess.DEVNULL,
    )
    return out


@pytest.fixture(params=["regression", "flow"])
def beginner(request: pytest.FixtureRequest, beginners: Path) -> Path:
    """A checkpoint of each head."""
    return beginners / f"{request.param}.safetensors"


@pytest.fixture(scope="module")
def digests() -> dict[Any, list[str | None]]:
    """By checkpoint and number of episodes, what its first evaluation gave."""
    return {}


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


def test_a_checkpoint_holds_all_that_the_policy_is(beginner: Path, tmp_path: Path) -> None:
    from examples.mt10_policy import STATE, load

    policy = load(str(beginner))
    policy.save(tmp_path / "again.safetensors")
    again = load(str(tmp_path / "again.safetensors"))
    batch = {STATE: torch.randn(3, 39), "task": [policy.instructions[0]] * 3, "noise": torch.randn(3, 10, 4)}
    assert torch.equal(policy(batch), again(batch))
    assert (again.spec, again.head) == (policy.spec, beginner.stem)
    stochastic = not torch.equal(policy(batch), policy(batch | {"noise": torch.randn(3, 10, 4)}))
    assert stochastic == (policy.head == "flow")


def test_the_same_seed_trains_the_same_checkpoint_byte_for_byte(tmp_path: Path) -> None:
    arguments = [
        "--head",
        "flow",
        "--target",
        "metaworld:reach-v3",
        "--episodes-per-task",
        "2",
        "--epochs",
        "2",
    ]
    once, again = (train(tmp_path / name, *arguments).read_bytes() for name in ("once", "again"))
    assert once == again


# One worker has one decision at a time to ask for: its batches are of one, whatever their limit.
@pytest.mark.parametrize(
    ("workers", "limits", "episodes"),
    [
        (1, [8], 2),
        (4, [1, 8], 2),
        pytest.param(1, [8], 5, marks=pytest.mark.soak),
        pytest.param(2, [1, 4, 8], 5, marks=pytest.mark.soak),
        pytest.param(4, [1, 4, 8], 5, marks=pytest.mark.soak),
    ],
)
def test_neither_workers_nor_batches_change_a_bit_of_what_either_head_does(
    beginner: Path, workers: int, limits: list[int], episodes: int, digests: dict[Any, list[str | None]]
) -> None:
    """All settings of a head against the first one: MT10, its episodes cut to 20 steps each."""

    async def main() -> list[rollout.Report]:
        engine = rollout.Engine(
            "metaworld:mt10", episodes=episodes, horizon=20, workers=workers, max_wait_ms=20.0
        )
        arguments = {"checkpoint": str(beginner)}
        async with engine:
            return [
                await engine.evaluate("examples.mt10_policy:load", max_batch=size, policy_args=arguments)
                for size in limits
            ]

    for report in anyio.run(main):
        found = [episode.digest for episode in report.episodes]
        assert len(set(found)) == 10 * episodes
        assert found == digests.setdefault((beginner, episodes), found)
    timing = report.summary.timing
    assert timing is not None
    assert timing.mean_batch is not None
    assert timing.mean_batch > 1.2 or workers == 1


def test_verify_says_so(beginners: Path) -> None:
    command = [sys.executable, "-c", "from rollout.cli import main; main()", "verify", "metaworld:mt10"]
    policy = [
        "--policy",
        "examples.mt10_policy:load",
        "--policy-arg",
        f"checkpoint={beginners / 'flow.safetensors'}",
    ]
    done = subprocess.run(
        [*command, *policy, "--episodes", "2", "--horizon", "20", "--workers", "4"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=DEADLINE_S,
        check=False,
        stdin=subprocess.DEVNULL,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "\nequal      20 episodes of 10 tasks: the same actions" in done.stdout


def test_an_instruction_that_it_was_not_trained_on_is_an_error_and_not_a_guess(checkpoint: Path) -> None:
    with pytest.raises(PolicyError, match="was not trained on 'Push the puck to a goal'"):
        evaluate(checkpoint, "metaworld:push-v3")


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (None, "train_mt10.py"),
        (b"not a checkpoint", "is no checkpoint"),
        (save({"weight": torch.zeros(1)}), "is no checkpoint"),
        (save({"weight": torch.zeros(1)}, {"arguments": '{"head": "tail"}'}), "is no checkpoint"),
    ],
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
