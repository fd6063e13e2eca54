"""Runs in an interpreter of its own: which episodes our LIBERO expert solves in a plain loop on LIBERO, as JSON.

`libero_success.py SUITE N_EPISODES TASK_ID...`: hard resets, one step at a time, `lerobot-eval`'s seeds and limits.
Tells `[success, steps]` of each episode, by task id.
"""

from __future__ import annotations

import json
import os
import random
import sys

import numpy as np

from rollout.envs import libero_files
from rollout.envs.libero import LiberoSimulator
from rollout.envs.libero_options import HORIZONS
from rollout.envs.libero_state import EnvironmentState
from rollout.policies.base import Request
from rollout.policies.libero_expert import LiberoExpert
from rollout.types import EpisodeSpec, TaskInfo


def episodes(suite_name: str, task_id: int, n_episodes: int) -> list[tuple[bool, int]]:
    """Of one task, by episode."""
    libero_files.prepare()
    from libero.libero.benchmark import get_benchmark
    from libero.libero.envs import OffScreenRenderEnv

    suite = get_benchmark(f"libero_{suite_name}")()
    # No camera is observed, but the context is made, as its constructor moves the solver's warm start.
    env = OffScreenRenderEnv(bddl_file_name=suite.get_task_bddl_file_path(task_id), use_camera_obs=False)
    init_states = suite.get_task_init_states(task_id)
    state = EnvironmentState(env.env)
    task = TaskInfo(
        suite=f"libero:{suite_name}",
        task=suite.tasks[task_id].name,
        task_id=task_id,
        instruction=suite.tasks[task_id].language,
        horizon=HORIZONS[suite_name],
        fps=20,
        action_space=LiberoSimulator(LiberoSimulator.describe(suite_name, {}), task_id, {}).info.action_space,
        observation_space={},
        success_rule="",
        environment_state=state.names,
        goal=state.goal,
    )
    found = []
    for episode in range(n_episodes):
        spec = EpisodeSpec(
            suite=task.suite,
            task=task.task,
            task_id=task_id,
            episode=episode,
            seed=1000 + episode,
            init_state=episode % len(init_states),
            horizon=HORIZONS[suite_name],
        )
        random.seed(spec.seed)
        env.seed(spec.seed)
        env.reset()
        env.set_init_state(init_states[spec.init_state or 0])
        for _ in range(10):
            env.step([0] * 6 + [-1])
        expert = LiberoExpert()
        session, success, steps = expert.open_session(spec, task), False, 0
        while not success and steps < spec.horizon:
            observation = {"observation.environment_state": state.read(), "task": task.instruction}
            [chunk] = expert.infer([Request(spec, task, steps, steps, session, observation)])
            _, _, success, _ = env.step(np.asarray(chunk)[0])
            steps += 1
        found.append((bool(success), steps))
    env.close()
    return found


if __name__ == "__main__":
    results = {task: episodes(sys.argv[1], int(task), int(sys.argv[2])) for task in sys.argv[3:]}
    sys.stdout.write("\n" + json.dumps(results) + "\n")
    sys.stdout.flush()
    os._exit(0)  # robosuite's destructors print tracebacks
