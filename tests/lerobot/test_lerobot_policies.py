"""Nothing but the decision decides what a checkpoint does: not its batch, and not what ran before."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from lerobot_loop import TARGET, opened

import rollout
from rollout.policies.base import Request
from rollout.testing import PolicyContract

EPISODES = 3
MATRIX = [(1, 4), (4, 1), (4, 4)]  # workers, batch limit


def digests(folder: Path, **settings: Any) -> list[str | None]:
    report = rollout.run(f"lerobot:{folder}", TARGET, episodes=EPISODES, device="cpu", **settings)
    assert report.summary.overall.n_error == 0
    return [episode.digest for episode in report.episodes]


@pytest.mark.parametrize(
    ("name", "settings"),
    [
        ("act, a part of the chunk", MATRIX),
        ("diffusion, DDPM", MATRIX),
        ("vqbet", MATRIX),
        ("multi_task_dit, diffusion", MATRIX[-1:]),
        ("smolvla", MATRIX[-1:]),
        ("pi0", MATRIX[-1:]),
        ("pi05", MATRIX[-1:]),
    ],
)
def test_episodes_are_the_same_whatever_number_of_workers_and_batch_limit(
    name: str, settings: list[tuple[int, int]], checkpoint: Callable[[str], Path]
) -> None:
    folder = checkpoint(name)
    alone = digests(folder, workers=1, max_batch=1)
    assert len(set(alone)) == EPISODES
    for workers, max_batch in settings:
        assert digests(folder, workers=workers, max_batch=max_batch, max_wait_ms=20.0) == alone


class TestStochasticPolicyWithHistory(PolicyContract):
    """The contract, for the policy that has noise, denoising noise, a history and a chunk."""

    target = TARGET
    n_episodes = 2

    @pytest.fixture(autouse=True)
    def _policy(self, checkpoint: Callable[[str], Path]) -> None:
        type(self).policy = f"lerobot:{checkpoint('diffusion, DDPM')}"


class Asking:
    """A policy that keeps what it was asked first."""

    def __init__(self, policy: Any) -> None:
        self.policy, self.requests = policy, []
        self.spec = policy.spec

    def infer(self, requests: list[Request]) -> Any:
        self.requests += requests
        return self.policy.infer(requests)


@pytest.mark.parametrize("name", ["diffusion, DDPM", "vqbet", "multi_task_dit, diffusion", "smolvla"])
def test_nothing_of_an_episode_stays_in_the_policy(name: str, checkpoint: Callable[[str], Path]) -> None:
    import torch

    with opened(checkpoint(name)) as policy:
        asking = Asking(policy)
        rollout.run(asking, TARGET, episodes=1, workers=1, horizon=6, device="cpu")
        network = policy._policy._policy
        assert not any(network._queues.values())
        scheduler = getattr(getattr(network, "diffusion", None), "noise_scheduler", None)
        assert scheduler is None or "step" not in vars(scheduler)
        state = torch.get_rng_state()
        again = policy.infer(asking.requests)
        assert torch.equal(torch.get_rng_state(), state)
        np.testing.assert_array_equal(again, policy.infer(asking.requests))


@pytest.mark.parametrize(
    ("name", "mixes"), [("smolvla", False), ("act, the whole chunk", True), ("pi0", True)]
)
def test_forwards_of_fixed_rows_mix_no_instructions_that_are_padded_to_the_longest(
    name: str, mixes: bool, checkpoint: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    tasks: list[list[str]] = []
    with opened(checkpoint(name)) as counting:
        asking, policy = Asking(counting), counting._policy
        rollout.run(asking, TARGET, episodes=3, workers=1, device="cpu", n_action_steps=2)
        texts = ["push", "push the point about", "push", "the point", "push", "push", "push"]
        requests = [
            Request(
                each.episode, each.task, each.decision, each.step, None, {**each.observation, "task": text}
            )
            for each, text in zip(asking.requests, texts, strict=False)
        ]
        alone = [policy.infer([request])[0] for request in requests]
        forward = policy._forward

        def noting(requests: list[Request]) -> Any:
            tasks.append([request.observation["task"] for request in requests])
            return forward(requests)

        monkeypatch.setattr(policy, "_forward", noting)
        monkeypatch.setattr(policy, "_rows", 4)  # as on a GPU, where it is 8
        together = policy.infer(requests)
    assert len(requests) == len(texts)
    assert [len(each) for each in tasks] == [4] * (2 if mixes else 4)
    assert any(len(set(each)) > 1 for each in tasks) is mixes
    np.testing.assert_allclose(together, alone, rtol=0.0, atol=1e-5)


def test_a_longer_part_of_the_chunk_than_the_checkpoints_can_be_executed(
    checkpoint: Callable[[str], Path], tmp_path: Path
) -> None:
    with opened(checkpoint("diffusion, DDPM")) as policy:
        assert (policy.spec.n_action_steps, policy.spec.chunk_size) == (4, 7)
    folder = checkpoint("diffusion, DDPM, the whole chunk")
    expected = digests(folder, workers=1)
    assert digests(checkpoint("diffusion, DDPM"), workers=1, n_action_steps=7) == expected
