"""Runs in an interpreter of its own: which episodes Meta-World's experts solve in a plain loop over `MT1`, as JSON.

`metaworld_success.py N_EPISODES TASK...`, with `lerobot-eval`'s seeds, 1000 and up for every task.
"""

from __future__ import annotations

import json
import sys
import warnings

import metaworld
import numpy as np
from metaworld.policies import ENV_POLICY_MAP

HORIZON = 500


def successes(task: str, n_episodes: int) -> list[bool]:
    """Of one task, by episode."""
    mt1 = metaworld.MT1(task, seed=42)
    env = mt1.train_classes[task]()
    env.set_task(mt1.train_tasks[0])
    env._freeze_rand_vec = False
    env.seeded_rand_vec = True
    found = []
    for episode in range(n_episodes):
        env.seed(1000 + episode)
        state, _ = env.reset()
        expert, success, steps = ENV_POLICY_MAP[task](), False, 0
        while not success and steps < HORIZON:
            action = np.clip(expert.get_action(state), -1, 1).astype(np.float32)
            state, _, _, _, info = env.step(action)
            success, steps = bool(info["success"]), steps + 1
        found.append(success)
    env.close()
    return found


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    print(json.dumps({task: successes(task, int(sys.argv[1])) for task in sys.argv[2:]}))
