"""Batching on a device: a real module through `TorchPolicy`, and for what share of the time the device works.

The simulators sleep as before. They run so fast that the cores need half the time that the device needs: the device is
what bounds, and a batcher should keep it busy.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import nn

from benchmarks.batching_setting import WAIT_S, Infer, Setting, request_for, run
from benchmarks.batching_theory import demand
from benchmarks.batching_work import Curve, draw
from benchmarks.job import Job, Measured, Unavailable, answer
from rollout.config import EvalConfig
from rollout.policies.base import PolicySpec, Request
from rollout.policies.torch import TorchPolicy

IMAGE, CHUNK, ACTION_DIM = "observation.images.top", 10, 7
WARM_UPS, REPEATS = 5, 20


@dataclass(frozen=True)
class Shape:
    """Of a vision transformer. The default is ViT-L/16: 2 TFLOP for 16 images, about 10 ms of an A100 in bf16."""

    size: int = 224
    patch: int = 16
    width: int = 1024
    depth: int = 24
    heads: int = 16


SMALL = Shape(size=32, width=32, depth=1, heads=2)


class Vit(nn.Module):
    """One image in, one action chunk out."""

    spec = PolicySpec(observation_keys=(IMAGE,), chunk_size=CHUNK, n_action_steps=CHUNK)

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        width = shape.width
        layer = nn.TransformerEncoderLayer(
            width, shape.heads, 4 * width, dropout=0.0, activation="gelu", batch_first=True, norm_first=True
        )
        self.patches = nn.Conv2d(3, width, shape.patch, shape.patch)
        self.layers = nn.TransformerEncoder(layer, shape.depth, enable_nested_tensor=False)
        self.head = nn.Linear(width, CHUNK * ACTION_DIM)

    def forward(self, batch: dict[str, Any]) -> torch.Tensor:
        tokens = self.patches(batch[IMAGE]).flatten(2).transpose(1, 2)
        actions: torch.Tensor = self.head(self.layers(tokens).mean(1)).view(-1, CHUNK, ACTION_DIM)
        return actions


class HostEvent:
    """Stands in for a CUDA event where the device is the CPU, which has done its work when a call returns."""

    def record(self) -> None:
        self._at = time.perf_counter()

    def elapsed_time(self, later: HostEvent) -> float:
        """Milliseconds, as a CUDA event says it."""
        return 1e3 * (later._at - self._at)


class Marked(nn.Module):
    """Notes on the device's own clock when each forward of `module` begins and ends."""

    def __init__(self, module: Vit, device: torch.device) -> None:
        super().__init__()
        self.module, self.spec, self._device = module, module.spec, device
        self._event: Any = (
            partial(torch.cuda.Event, enable_timing=True) if device.type == "cuda" else HostEvent
        )
        self._marks: list[tuple[Any, Any]] = []

    def forward(self, batch: dict[str, Any]) -> torch.Tensor:
        begins, ends = self._event(), self._event()
        begins.record()
        actions: torch.Tensor = self.module(batch)
        ends.record()
        self._marks.append((begins, ends))
        return actions

    def take_busy_s(self) -> float:
        """Seconds that the device spent in forwards since the last call of this."""
        if self._device.type == "cuda":
            torch.cuda.synchronize(self._device)
        busy_s: float = sum(begins.elapsed_time(ends) for begins, ends in self._marks) / 1e3
        self._marks.clear()
        return busy_s


class Noted:
    """A policy's `infer` that notes the batches it gets."""

    def __init__(self, infer: Infer, marked: Marked) -> None:
        self._infer, self._marked = infer, marked
        self._batches: Counter[int] = Counter()

    def infer(self, requests: Sequence[Request]) -> Sequence[Any]:
        """An action chunk a request."""
        self._batches[len(requests)] += 1
        return self._infer(requests)

    def take(self, wall_s: float) -> dict[str, Any]:
        """What the last `wall_s` seconds saw: all since the last call of this."""
        batches, self._batches = dict(sorted(self._batches.items())), Counter()
        return {"wall_s": wall_s, "policy_busy": self._marked.take_busy_s() / wall_s, "batches": batches}


def measure(job: Job) -> Measured:
    """The share of the time that the device is in forwards, by its own clock."""
    device, cores, simulators = torch.device(job.case["device"]), job.case["cores"], job.case["simulators"]
    if device.type == "cuda" and not torch.cuda.is_available():
        raise Unavailable("PyTorch finds no CUDA device: install a build of it for this GPU")
    shape = SMALL if job.case.get("small") else Shape()
    marked = Marked(Vit(shape), device)
    dtype = "bf16" if device.type == "cuda" else "fp32"
    config = EvalConfig.create(targets=("gym:CartPole-v1",), device=str(device), dtype=dtype)
    request = request_for({IMAGE: np.zeros((shape.size, shape.size, 3), np.uint8), "task": ""})
    with TorchPolicy.evaluating(marked, config) as policy:
        curve = _curve(policy.infer, marked, request, simulators)
        episodes = job.case["episodes"]
        in_life = demand(draw(episodes), curve, cores, simulators)
        drawn = draw(episodes, speed=2 * in_life.cores_s / in_life.policy_s)
        asked, noted = demand(drawn, curve, cores, simulators), Noted(policy.infer, marked)
        setting = Setting(drawn, cores=cores, simulators=simulators, infer=noted.infer, request=request)
        wall_s = run(job.case["rule"], setting, WAIT_S)
    seen = noted.take(wall_s)
    extra = {"share_of_bound": asked.bound_s / wall_s, "curve": asdict(curve), "decisions": asked.decisions}
    return Measured(seen["policy_busy"], {**seen, **extra})


def _curve(infer: Infer, marked: Marked, request: Request, simulators: int) -> Curve:
    """A line through the device's times for N / 2 and N."""

    def forward_s(batch: int) -> float:
        for _ in range(WARM_UPS):
            infer([request] * batch)
        marked.take_busy_s()
        for _ in range(REPEATS):
            infer([request] * batch)
        return marked.take_busy_s() / REPEATS

    half = simulators // 2
    half_s, full_s = forward_s(half), forward_s(2 * half)
    each_s = min(max(0.0, (full_s - half_s) / half), half_s / half)
    return Curve(half_s - each_s * half, each_s)


if __name__ == "__main__":
    answer(measure)
