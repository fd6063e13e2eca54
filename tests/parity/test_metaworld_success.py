"""MT50: the engine's experts solve exactly the episodes that they solve in a plain loop."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

import rollout
from rollout.envs.metaworld_tasks import INSTRUCTIONS

SCRIPT = Path(__file__).with_name("metaworld_success.py")
N_EPISODES = 10


@pytest.mark.metaworld
def test_the_experts_solve_the_episodes_of_a_plain_loop_and_no_others(in_child: Callable[..., Any]) -> None:
    report = rollout.run("expert", "metaworld:mt50", episodes=N_EPISODES)
    ours: dict[str, list[bool | None]] = {}
    for episode in report.episodes:
        ours.setdefault(episode.task, []).append(episode.success)
    halves = [list(INSTRUCTIONS)[half::2] for half in range(2)]
    with ThreadPoolExecutor(2) as pool:
        told = pool.map(lambda tasks: in_child(SCRIPT, str(N_EPISODES), *tasks), halves)
        theirs = {task: found for half in told for task, found in half.items()}
    assert ours == theirs
    assert report.summary.overall.n_error == 0
    assert 0.9 < sum(map(sum, theirs.values())) / (50 * N_EPISODES) < 1  # both outcomes occur
