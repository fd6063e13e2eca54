"""Runs in an interpreter of its own: one episode of the LIBERO expert in our simulator, as JSON."""

from __future__ import annotations

import json
import sys
from typing import Any

import numpy as np

from rollout.envs.libero import LiberoSimulator
from rollout.envs.observations import ENVIRONMENT_STATE
from rollout.policies.base import Request
from rollout.policies.libero_expert import LiberoExpert
from rollout.types import EpisodeSpec


def played(suite: str, task_id: int, episode: int) -> dict[str, Any]:
    simulator = LiberoSimulator(LiberoSimulator.describe(suite, {}), task_id, {})
    simulator.build()
    info = simulator.info
    assert info.horizon is not None
    spec = EpisodeSpec(
        suite=info.suite,
        task=info.task,
        task_id=task_id,
        episode=episode,
        seed=1000 + episode,
        init_state=episode,
        horizon=info.horizon,
    )
    expert = LiberoExpert()
    session = expert.open_session(spec, info)
    observation = simulator.reset(spec, expert.spec.observation_request)
    first = observation[ENVIRONMENT_STATE]
    success, n_steps, largest = False, 0, 0.0
    while not success and n_steps < info.horizon:
        [chunk] = expert.infer([Request(spec, info, n_steps, n_steps, session, observation)])
        step = simulator.step(chunk[0], True)
        assert step.observation is not None
        observation, success, n_steps = step.observation, bool(step.success), n_steps + 1
        largest = max(largest, float(np.abs(chunk).max()))
    simulator.close()
    return {
        "success": success,
        "n_steps": n_steps,
        "largest": largest,
        "names": list(info.environment_state),
        "goal": [list(predicate) for predicate in info.goal],
        "n_values": len(first),
        "dtype": str(first.dtype),
        "finite": bool(np.isfinite(first).all()),
        "state": dict(zip(info.environment_state, first.tolist(), strict=True)),
    }


if __name__ == "__main__":
    print(json.dumps(played(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))))
