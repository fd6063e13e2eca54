"""Meta-World's states and scripted experts: a step takes half a millisecond, and nothing is rendered."""

from __future__ import annotations

from collections.abc import Sequence

from benchmarks.workload import OURS, Case, Contender, Ratio, Workload
from benchmarks.workloads.transport import ASYNC, SUBPROC

__all__ = ["WORKLOAD"]

TASK, SEED = "push-v3", 1000


def cases(quick: bool) -> Sequence[Case]:
    """A fixed list of episodes, the same for all: seeds 1000, 1001, …"""
    return [
        Case(
            name=f"{TASK}, n = 16",
            parameters={"n": 16, "task": TASK, "seed": SEED, "episodes_each": 2 if quick else 10},
            contenders=(
                Contender(name=OURS, module="rollout"),
                ASYNC,
                SUBPROC,
                Contender(name="plain loop", module="sequential"),
            ),
            ratios=(
                Ratio(over=ASYNC.name, target=1.7),
                Ratio(over=SUBPROC.name),
                Ratio(over="plain loop"),
            ),
        ),
        # Without a policy, and with episodes of its own: what a simulator's state can give at most.
        Case(
            name=f"{TASK}, n = 16, beside physics in C++ with actions drawn before",
            parameters={"n": 16, "task": TASK, "seed": SEED, "episodes_each": 2 if quick else 10},
            contenders=(
                Contender(name=OURS, module="rollout"),
                Contender(name="EnvPool", module="envpool", peer="envpool"),
            ),
            ratios=(Ratio(over="EnvPool"),),
        ),
    ]


WORKLOAD = Workload(
    name="metaworld",
    title="Meta-World state with the scripted expert: the same episodes, to the last one",
    cases=cases,
)
