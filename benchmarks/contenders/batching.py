"""The engine's batcher, with simulators and a policy that only sleep; and what its rule reaches in theory."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from benchmarks.batching_setting import WAIT_S, Setting, request_for, run
from benchmarks.batching_theory import best_rule, demand, simulated_s
from benchmarks.batching_work import Curve, draw
from benchmarks.job import Job, Measured, answer


@dataclass
class Accelerator:
    """The simulated policy; notes what it was given."""

    curve: Curve
    batches: list[int] = field(default_factory=list)
    busy_s: float = 0.0

    def infer(self, requests: Sequence[Any]) -> Sequence[None]:
        """Sleep for as long as the forward takes."""
        began = time.monotonic()
        self.batches.append(len(requests))
        time.sleep(self.curve(len(requests)))
        self.busy_s += time.monotonic() - began
        return [None] * len(requests)


def measure(job: Job) -> Measured:
    """The share of the bound; in `extra`, seconds of life."""
    case = job.case
    curve, work = Curve(case["a_s"], case["b_s"]), draw(case["episodes"], case["pace"])
    asked = demand(work, curve, case["cores"], case["simulators"])
    how = THEORY.get(case["rule"])
    extra = {"wall_s": how(case, curve)} if how is not None else _timed(case, curve)
    shares = {"share_of_full_bound": asked.full_bound_s / extra["wall_s"], "demand": asdict(asked)}
    return Measured(asked.bound_s / extra["wall_s"], {**extra, **shares})


def _timed(case: dict[str, Any], curve: Curve) -> dict[str, Any]:
    # Simulators that take milliseconds a chunk are measured as fast as in life.
    speed = max(1.0, case["speed"] / case["pace"])
    drawn = draw(case["episodes"], speed * case["pace"])
    accelerator = Accelerator(curve.faster(speed))
    setting = Setting(
        drawn,
        cores=case["cores"],
        simulators=case["simulators"],
        infer=accelerator.infer,
        request=request_for({}),
    )
    wall_s = run(case["rule"], setting, WAIT_S / speed)
    return {
        "wall_s": wall_s * speed,
        "policy_busy": accelerator.busy_s / wall_s,
        "cores_busy": sum(each.total_s for each in drawn) / case["cores"] / wall_s,
        "batches": dict(sorted(Counter(accelerator.batches).items())),
    }


def _greedy_s(case: dict[str, Any], curve: Curve) -> float:
    return simulated_s(draw(case["episodes"], case["pace"]), curve, case["cores"], case["simulators"])


def _best_s(case: dict[str, Any], curve: Curve) -> float:
    return best_rule(draw(case["episodes"], case["pace"]), curve, case["cores"], case["simulators"])[0]


THEORY: dict[str, Callable[[dict[str, Any], Curve], float]] = {
    "greedy in theory": _greedy_s,
    "best in theory": _best_s,
}

if __name__ == "__main__":
    answer(measure)
