"""The scripted expert solves LIBERO's tasks, and exactly the episodes that it solves in a plain loop."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import rollout

SCRIPT = Path(__file__).with_name("libero_success.py")


@pytest.mark.libero
@pytest.mark.gl
@pytest.mark.parametrize(
    ("suite", "task", "n_episodes"),
    [
        ("spatial", 2, 2),
        pytest.param("spatial", 2, 5, marks=pytest.mark.soak),
        pytest.param("object", 6, 5, marks=pytest.mark.soak),
        pytest.param("goal", 8, 5, marks=pytest.mark.soak),
    ],
)
def test_the_expert_takes_as_many_steps_as_in_a_plain_loop(
    in_child: Callable[..., Any], suite: str, task: int, n_episodes: int
) -> None:
    report = rollout.run("expert", f"libero:{suite}", tasks=(task,), episodes=n_episodes, workers=2)
    theirs = in_child(SCRIPT, suite, str(n_episodes), str(task))
    assert [[episode.success, episode.steps] for episode in report.episodes] == theirs[str(task)]
    assert report.success_rate == 1
