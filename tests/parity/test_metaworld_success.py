"""MT10, and MT50: the engine's experts solve exactly the episodes that they solve in a plain loop."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

import rollout

SCRIPT = Path(__file__).with_name("metaworld_success.py")


@pytest.mark.metaworld
@pytest.mark.parametrize(
    ("target", "n_episodes"),
    [("metaworld:mt10", 3), pytest.param("metaworld:mt50", 10, marks=pytest.mark.soak)],
)
def test_the_experts_solve_the_episodes_of_a_plain_loop_and_no_others(
    in_child: Callable[..., Any], target: str, n_episodes: int
) -> None:
    report = rollout.run("expert", target, episodes=n_episodes)
    ours: dict[str, list[bool | None]] = {}
    for episode in report.episodes:
        ours.setdefault(episode.task, []).append(episode.success)
    halves = [list(ours)[half::2] for half in range(2)]
    with ThreadPoolExecutor(2) as pool:
        told = pool.map(lambda tasks: in_child(SCRIPT, str(n_episodes), *tasks), halves)
        theirs = {task: found for half in told for task, found in half.items()}
    assert ours == theirs
    assert report.summary.overall.n_error == 0
    assert 0.9 < sum(map(sum, theirs.values())) / len(report.episodes) < 1  # both outcomes occur
