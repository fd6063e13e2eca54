"""What an engine costs beside its simulators: an environment that does nothing, one step a decision."""

from __future__ import annotations

from collections.abc import Sequence

from benchmarks.workload import OURS, Case, Contender, Ratio, Workload

__all__ = ["ASYNC", "SUBPROC", "WORKLOAD"]

ASYNC = Contender(name="AsyncVectorEnv", module="gymnasium")
SUBPROC = Contender(name="SubprocVecEnv", module="stable_baselines3")
CONTENDERS = (
    Contender(name=OURS, module="rollout", parameters={"inline": True}),
    ASYNC,
    SUBPROC,
    Contender(name="AsyncVectorEnv, copy=False", module="gymnasium", parameters={"copy": False}),
    Contender(name=f"{OURS}, policy in its thread", module="rollout", parameters={"inline": False}),
)
TARGETS = {(16, False): (3.0, 2.0), (16, True): (3.0, 8.0)}


def _case(n: int, images: bool) -> Case:
    over_async, over_subproc = TARGETS.get((n, images), (None, None))
    return Case(
        name=f"n = {n}, {'393 KB' if images else '4 floats'}",
        parameters={"n": n, "images": images},
        contenders=CONTENDERS,
        most_rounds=3 if n == 64 else None,  # 64 processes of SubprocVecEnv import torch each
        ratios=(
            Ratio(over=ASYNC.name, target=over_async),
            Ratio(over=SUBPROC.name, target=over_subproc),
            Ratio(over="AsyncVectorEnv, copy=False"),
        ),
    )


def cases(quick: bool) -> Sequence[Case]:
    """Small and large observations, of few and many environments."""
    return [_case(n, images) for images in (False, True) for n in ((16,) if quick else (4, 16, 64))]


WORKLOAD = Workload(
    name="transport",
    title="no-op environments, one step a decision: what the engine costs",
    cases=cases,
)
