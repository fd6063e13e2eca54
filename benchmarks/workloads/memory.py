"""What a worker costs in memory, from one worker to sixteen."""

from __future__ import annotations

from collections.abc import Sequence

from benchmarks.workload import OURS, Case, Contender, Ratio, Workload

__all__ = ["WORKLOAD"]

NAMES = {"no-op": "no-op", "metaworld": "Meta-World", "libero": "LIBERO"}
PEERS = ("AsyncVectorEnv", "SubprocVecEnv")


def _case(family: str, n: int) -> Case:
    peers = () if family == "libero" else PEERS
    return Case(
        name=f"{NAMES[family]}, {n} worker{'s' if n > 1 else ''}",
        parameters={"family": family, "n": n},
        contenders=[Contender(name=who, module="memory", parameters={"who": who}) for who in (OURS, *peers)],
        unit="MB a worker",
        better="less",
        ratios=[Ratio(over=peer) for peer in peers],
        most_rounds=2,
    )


def cases(quick: bool) -> Sequence[Case]:
    """Workers in the middle of an episode each."""
    families, sizes = (("no-op", "metaworld"), (4,)) if quick else (tuple(NAMES), (1, 4, 16))
    return [_case(family, n) for family in families for n in sizes]


WORKLOAD = Workload(
    name="memory",
    title="memory a worker (PSS; USS in the JSON), of 1, 4 and 16 workers",
    cases=cases,
)
