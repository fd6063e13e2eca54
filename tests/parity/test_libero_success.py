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
@pytest.mark.parametrize(("suite", "tasks"), [("spatial", (2,)), ("object", (6,)), ("goal", (8,))])
def test_the_expert_takes_as_many_steps_as_in_a_plain_loop(
    in_child: Callable[..., Any], suite: str, tasks: tuple[int, ...]
) -> None:
    n_episodes = 3
    report = rollout.run("expert", f"libero:{suite}", tasks=tasks, episodes=n_episodes, workers=2)
    theirs = in_child(SCRIPT, suite, str(n_episodes), *map(str, tasks))
    for task in tasks:
        ours = [[episode.success, episode.steps] for episode in report.episodes if episode.task_id == task]
        assert ours == theirs[str(task)]
    assert report.success_rate == 1
