"""A compiled module, in an interpreter of its own: Triton's LLVM crashes beside Mesa's, which other tests may load.

Prints the sizes of the batches that were compiled, and the largest difference to the plain module."""

from __future__ import annotations

import json
import warnings
from typing import Any

import numpy as np
import torch
from torch import nn

from rollout.config import EvalConfig
from rollout.policies.base import PolicySpec, Request
from rollout.policies.load import as_policy
from rollout.types import EpisodeSpec

EPISODE = EpisodeSpec(suite="s", task="t", task_id=0, episode=0, seed=0, horizon=9)


class Swing(nn.Module):
    spec = PolicySpec(observation_keys=("observation.state",))

    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Linear(2, 2)
        self.sizes: set[int] = set()

    def forward(self, batch: dict[str, Any]) -> torch.Tensor:
        self.sizes.add(len(batch["observation.state"]))  # runs when it is compiled, and not after
        result: torch.Tensor = self.net(batch["observation.state"])
        return result


def request(state: np.ndarray) -> Request:
    return Request(EPISODE, None, 0, 0, None, {"observation.state": state, "task": ""})  # type: ignore[arg-type]


def main() -> None:
    warnings.simplefilter("ignore")  # torch's, of torch
    module, rng = Swing(), np.random.default_rng(0)
    asked = [request(rng.standard_normal(2).astype("f4")) for _ in range(4)]
    with as_policy(module, EvalConfig.create(targets=("gym:x",))) as policy:
        expected = np.stack(policy.infer(asked))
    module.sizes.clear()
    config = EvalConfig.create(targets=("gym:x",), compile=True, deterministic=False)
    largest = 0.0
    with as_policy(module, config) as policy:
        for count in (3, 4, 3):
            found = np.stack(policy.infer(asked[:count]))
            largest = max(largest, float(np.abs(found - expected[:count]).max()))
    print(json.dumps({"sizes": sorted(module.sizes), "largest": largest}))


if __name__ == "__main__":
    main()
