"""What the live view costs the run that it shows."""

from __future__ import annotations

from collections.abc import Sequence

from benchmarks.workload import OURS, Case, Contender, Ratio, Workload

__all__ = ["WORKLOAD"]

NAMES = {"no-op": "no-op environments, n = 16", "metaworld": "Meta-World state with the expert, n = 16"}


def cases(quick: bool) -> Sequence[Case]:
    """The hardest, where steps cost nothing else, and a real one."""
    return [
        Case(
            name=name,
            # The live view redraws a few times a second, and ends with a table: of less time it would cost more.
            parameters={"work": work, "pairs": 5, "seconds": 3.0},
            contenders=[Contender(name=OURS, module="display")],
            unit="of the speed without a display",
            ratios=[Ratio(target=0.99)],
            most_rounds=3,
        )
        for work, name in NAMES.items()
        if not quick or work == "no-op"
    ]


WORKLOAD = Workload(
    name="display",
    title="the live view on a terminal against none, in turn on one warm engine",
    cases=cases,
)
