"""The engine executes what LeRobot's own loop gives: reset, preprocess, `select_action`, postprocess, at every step."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from lerobot_loop import TARGET, Reference, opened
from tiny_policies import POLICIES

import rollout
from rollout.results.journal import read_actions
from rollout.values import unpack_array

EPISODES = 4


@pytest.mark.parametrize("max_batch", [1, EPISODES])
@pytest.mark.parametrize("name", POLICIES)
def test_every_executed_action_is_that_of_lerobots_own_loop(
    name: str, max_batch: int, checkpoint: Callable[[str], Path], tmp_path: Path
) -> None:
    folder = checkpoint(name)
    episodes = EPISODES if max_batch > 1 else 2
    together = {"deterministic": False, "max_wait_ms": 500.0} if max_batch > 1 else {}
    with opened(folder, **together) as policy:
        report = rollout.run(
            policy,
            TARGET,
            episodes=episodes,
            workers=EPISODES if max_batch > 1 else 1,
            max_batch=max_batch,
            out=tmp_path / "run",
            **together,
        )
    assert report.summary.overall.n_error == 0
    assert (max(policy.sizes) > 1) is (max_batch > 1)
    executed = {
        key[2]: unpack_array(record.actions) for key, record in read_actions(tmp_path / "run").items()
    }
    reference = Reference(folder)
    assert len(policy.episodes) == len(executed) == episodes
    for episode in policy.episodes:
        actions = executed[episode.episode]
        assert len(actions) == 12 + episode.seed % 4
        expected = reference.actions(episode, actions)
        np.testing.assert_allclose(actions, expected, rtol=0.0, atol=1e-5)
        assert np.ptp(actions, axis=0).min() > 1e-2  # of observations that make a difference
        if episode.episode == 0 and not name.startswith("act"):
            assert np.abs(actions - reference.actions(episode, actions, other_noise=1)).max() > 1e-2
