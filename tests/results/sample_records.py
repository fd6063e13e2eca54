"""Records for the tests of `rollout.results`: real structs, with any field overridden."""

from __future__ import annotations

from typing import Any

import numpy as np

from rollout.results.header import Header
from rollout.types import EpisodeFailure, EpisodeResult, Outcome, ProtocolUsed, Spent
from rollout.values import Value, pack

KEYS = [("metaworld:mt10", task_id, episode) for task_id in range(2) for episode in range(3)]


def header(**changes: Any) -> Header:
    values: dict[str, Any] = {
        "created": "2025-01-01T00:00:00+00:00",
        "config": {"targets": ("metaworld:mt10",), "episodes": 3, "policy": "expert", "options": {}},
        "fingerprint": "f0",
        "policy": "expert",
        "versions": {"rollout": "0.1.0", "mujoco": "3.3.0"},
        "gl": None,
        "protocol": ProtocolUsed(
            name="lerobot", fingerprint="0f", seed=1000, horizon=None, n_action_steps=None, options={}
        ),
        "planned": len(KEYS),
    }
    return Header(**values | changes)


def result(episode: int = 0, outcome: Outcome = Outcome.SUCCESS, **changes: Any) -> EpisodeResult:
    judged = {Outcome.SUCCESS: True, Outcome.FAILURE: False}
    failed = outcome is Outcome.ERROR
    values: dict[str, Any] = {
        "suite": "metaworld:mt10",
        "task": "reach-v3",
        "task_id": 0,
        "episode": episode,
        "seed": 1000 + episode,
        "init_state": None,
        "outcome": outcome,
        "success": judged.get(outcome),
        "steps": 0 if failed else 10 + episode,
        "sum_reward": None if failed else 1.5 * episode,
        "max_reward": None if failed else 1.0,
        "terminated": outcome is Outcome.SUCCESS,
        "truncated": outcome is Outcome.FAILURE,
        "attempts": 3 if failed else 1,
        "error": EpisodeFailure(type="WorkerDied", message="signal 9", traceback="") if failed else None,
        "digest": None if failed else f"d{episode}",
        "time_s": Spent(reset=0.25, sim=0.5),
    }
    return EpisodeResult(**values | changes)


def at(key: tuple[str, int, int], outcome: Outcome = Outcome.SUCCESS, **changes: Any) -> EpisodeResult:
    suite, task_id, episode = key
    return result(episode, outcome, suite=suite, task_id=task_id, task=f"task-{task_id}", **changes)


def actions(episode: int, steps: int = 4) -> Value:
    return pack(np.full((steps, 2), episode, np.float32))
