"""Sixteen simulators that sleep for unequal times through episodes of unequal lengths, and a policy that sleeps too."""

from __future__ import annotations

from collections.abc import Sequence

from benchmarks.workload import OURS, Case, Contender, Ratio, Workload

__all__ = ["WORKLOAD"]

# What a forward of B takes, a + b B seconds in life, and whether our share of the bound has a target.
POLICIES = {
    "small policy, 3 + 0.1 B ms": (0.003, 0.0001, 0.95),
    "launch-bound, 25 + 0.2 B ms": (0.025, 0.0002, None),
}
CONTENDERS = (
    Contender(name=OURS, module="rollout"),
    Contender(name="lock-step, refilled", module="lock_step", parameters={"refilled": True}),
    Contender(name="lock-step", module="lock_step", parameters={"refilled": False}),
)


def cases(quick: bool) -> Sequence[Case]:
    """LIBERO's times at ten steps a decision, ten times as fast as in life; its four suites as papers run them."""
    return [
        Case(
            name=f"16 workers, {name}",
            parameters={
                "workers": 16,
                "episodes": 500 if quick else 2000,
                "speed": 10.0,
                "a_s": a_s,
                "b_s": b_s,
            },
            contenders=CONTENDERS,
            unit="of the bound",
            ratios=(Ratio(target=target), Ratio(over="lock-step, refilled"), Ratio(over="lock-step")),
            most_rounds=3,
        )
        for name, (a_s, b_s, target) in POLICIES.items()
    ]


WORKLOAD = Workload(
    name="scheduling",
    title="16 sleeping simulators, unequal episodes: the share of the bound",
    cases=cases,
)
