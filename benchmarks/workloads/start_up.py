"""What every evaluation pays once: imports, the forkserver, the workers, the first step."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from benchmarks.workload import OURS, Case, Contender, Ratio, Workload

__all__ = ["WORKLOAD"]

PEERS = ("AsyncVectorEnv", "SubprocVecEnv")


def _case(name: str, who: Sequence[str], **parameters: Any) -> Case:
    return Case(
        name=name,
        parameters=parameters,
        contenders=[Contender(name=each, module="start_up", parameters={"who": each}) for each in who],
        unit="s",
        better="less",
        ratios=[Ratio(over=each) for each in who if each != OURS],
    )


def _command(target: str) -> Case:
    arguments = ["run", target, "--policy", "zero", "--episodes", "1", "--horizon", "1", "--display", "none"]
    return _case(f"`rollout run {target}`, one step", (OURS,), what="command", arguments=arguments)


def cases(quick: bool) -> Sequence[Case]:
    """Seconds from the start of a Python interpreter."""
    few = [
        _case("until it is imported", (OURS, *PEERS), what="import"),
        _case("until 16 no-op environments have stepped", (OURS, *PEERS), what="first step", n=16),
        _command("gym:CartPole-v1"),
    ]
    return few if quick else [*few, _command("metaworld:reach-v3")]


WORKLOAD = Workload(
    name="start-up",
    title="from the interpreter's start to imports, to the first step, to a command's end",
    cases=cases,
)
