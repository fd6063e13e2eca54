"""How near the batcher comes to the bound, with simulators and an accelerator that only sleep: the bound is exact then.

A simulator is a coroutine that sleeps for drawn, log-normal times while it holds one of the cores; the policy is a
thread that sleeps a + b B for a batch of B, behind the engine's `Batcher`. Everything but the fastest simulators runs
`SPEED` times as fast as in life, so what a batcher costs weighs as many times more.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from benchmarks.workload import OURS, Case, Contender, Ratio, Workload

__all__ = ["WORKLOAD"]

CORES, SPEED = 16, 5.0
EPISODES, FEW_EPISODES = 500, 128  # LIBERO-Spatial: ten tasks × 50. Of few, the end of the run weighs more.

# What a forward of B takes, a + b B seconds; how many simulators ask; how many times as fast as LIBERO's these are.
# The 7B curve is fitted, within 4 %, to what vla-eval's tuning guide measured of DB-CogACT on an H100 (165 observations
# a second in batches of 1 to 485 in batches of 24, at twelve a decision). "Balanced" asks as much of the policy as of
# the cores, which leaves no slack to either. "Fast simulators" are Meta-World's without images: eight steps of 0.42 ms.
POLICIES = {
    "small policy": (0.003, 0.0001, 2 * CORES, 1.0),
    "7B VLA": (0.050, 0.023, 2 * CORES, 1.0),
    "launch-bound": (0.025, 0.0002, 2 * CORES, 1.0),
    "balanced, the hard case": (0.080, 0.0107, 2 * CORES, 1.0),
    "balanced, N = 3C": (0.080, 0.0107, 3 * CORES, 1.0),
    "launch-bound, fast simulators": (0.025, 0.0002, 2 * CORES, 70.0),
}
QUICK = ("small policy", "7B VLA")
RULES = {OURS: "greedy", f"{OURS}, 10 ms wait": "10 ms wait", "lock-step": "lock-step"}
THEORY = {"greedy in theory": "greedy in theory", "best rule in theory": "best in theory"}


def _contenders(module: str, rules: dict[str, str]) -> list[Contender]:
    return [Contender(name=name, module=module, parameters={"rule": rule}) for name, rule in rules.items()]


def cases(quick: bool) -> Sequence[Case]:
    """Policies from small to large; where there is a GPU, a real one too."""
    episodes = FEW_EPISODES if quick else EPISODES
    return [
        Case(
            name=f"{name}, {1e3 * a_s:g} + {1e3 * b_s:g} B ms",
            parameters={
                "a_s": a_s,
                "b_s": b_s,
                "simulators": simulators,
                "pace": pace,
                "cores": CORES,
                "episodes": episodes,
                "speed": SPEED,
            },
            contenders=_contenders("batching", RULES | THEORY),
            unit="of the bound",
            ratios=(Ratio(), Ratio(over="lock-step")),
            most_rounds=3,
        )
        for name, (a_s, b_s, simulators, pace) in POLICIES.items()
        if not quick or name in QUICK
    ] + ([_on_device(episodes)] if Path("/proc/driver/nvidia/version").exists() else [])


def _on_device(episodes: int) -> Case:
    return Case(
        name="ViT-L in bf16 on the GPU",
        parameters={"device": "cuda", "simulators": 2 * CORES, "cores": CORES, "episodes": episodes},
        contenders=_contenders("batching_device", RULES),
        unit="of the time in forwards",
        ratios=(Ratio(), Ratio(over="lock-step")),
        most_rounds=3,
    )


WORKLOAD = Workload(
    name="batching",
    title="the batcher alone, simulated simulators and policies: the share of the bound",
    cases=cases,
)
