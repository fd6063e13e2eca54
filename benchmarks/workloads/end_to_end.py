"""Whole evaluations on real simulators, with software rendering: what a user waits for, workers and scenes included.

Ours and a bare AsyncVectorEnv loop run in the harness's own environment, `lerobot-eval` in one of its own. All run the
same episodes: `extra.records` has each one's steps, outcome, return and a digest of its actions.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from benchmarks.workload import OURS, Case, Contender, Ratio, Workload

__all__ = ["WORKLOAD"]

OURSELVES = Contender(name=OURS, module="rollout_evaluation")
LEROBOT = Contender(name="lerobot-eval", module="lerobot_eval", peer="lerobot")
VLA_EVAL = Contender(name="vla-eval, two shards", module="vla_eval", peer="vla_eval")
LOOP = Contender(name="AsyncVectorEnv, every step rendered, hard resets", module="async_vector_libero")

ROUNDS = 3
TIMEOUT_S = 3 * 3600.0
LIBERO = {"family": "libero", "tasks": [0, 1], "size": 256}
PIXELS = {"family": "metaworld", "tasks": ["reach-v3", "push-v3"], "size": 480}


def cases(quick: bool) -> Sequence[Case]:
    """Chunks of 1, 10 and 50 steps, the expert's unequal episodes, and Meta-World's pixels."""
    chunks = (10,) if quick else (10, 50, 1)
    return [*(libero(chunk, quick) for chunk in chunks), expert(quick), metaworld(quick)]


def libero(chunk: int, quick: bool) -> Case:
    """A small vision policy that never succeeds: every episode runs to its horizon."""
    horizon, episodes = (60, 2) if quick else (280, 4)
    lerobot, loop = {1: (None, None), 10: (5.5, 5.0), 50: (9.0, None)}[chunk]
    return _case(
        f"LIBERO spatial 0 and 1, chunk {chunk}",
        {**LIBERO, "episodes": episodes, "chunk": chunk, "horizon": horizon},
        (OURSELVES, LOOP, LEROBOT, VLA_EVAL) if chunk == 10 else (OURSELVES, LOOP, LEROBOT),
        (
            Ratio(over=LOOP.name, target=loop),
            Ratio(over=LEROBOT.name, target=lerobot),
            *([Ratio(over=VLA_EVAL.name)] if chunk == 10 else []),
        ),
    )


def expert(quick: bool) -> Case:
    """The scripted expert's actions, replayed in chunks of 10 by a policy that looks at the pictures: the episodes end
    when they succeed, some of them after twice as many steps as others."""
    return _case(
        "LIBERO spatial 0 and 1, chunk 10, the expert's episodes",
        {**LIBERO, "episodes": 2 if quick else 20, "chunk": 10, "horizon": 280, "policy": "recorded"},
        (OURSELVES, LEROBOT),
        (Ratio(over=LEROBOT.name, target=8.0),),
    )


def metaworld(quick: bool) -> Case:
    """One camera of 480 x 480."""
    horizon, episodes = (60, 2) if quick else (500, 2)
    return _case(
        "Meta-World reach-v3 and push-v3, 480 x 480, chunk 10",
        {**PIXELS, "episodes": episodes, "chunk": 10, "horizon": horizon},
        (OURSELVES, LEROBOT),
        (Ratio(over=LEROBOT.name, target=12.0),),
    )


def _case(
    name: str, parameters: dict[str, Any], contenders: Sequence[Contender], ratios: Sequence[Ratio]
) -> Case:
    return Case(
        name=name,
        parameters=parameters,
        contenders=contenders,
        ratios=ratios,
        unit="s",
        better="less",
        most_rounds=ROUNDS,
        timeout_s=TIMEOUT_S,
    )


WORKLOAD = Workload(
    name="end-to-end",
    title="whole evaluations: LIBERO and Meta-World pixels, start to end, the same episodes on all sides",
    cases=cases,
)
