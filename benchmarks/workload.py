"""What a workload is: cases, who runs each of them, and which ratios are asked for."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

__all__ = ["OURS", "Case", "Contender", "Ratio", "Workload"]

OURS = "rollout"
"""What our contender is called in every case."""

HOUR_S = 3600.0


@dataclass(frozen=True, kw_only=True)
class Contender:
    """Somebody who runs a case: `python -m benchmarks.contenders.<module>`, a fresh process for every measurement."""

    name: str  # in tables, e.g. "AsyncVectorEnv"
    module: str  # in benchmarks/contenders
    parameters: Mapping[str, Any] = field(default_factory=dict)  # join the case's own, JSON
    peer: str | None = None  # the environment of `benchmarks.peers` that it needs; None: the harness\'s own


@dataclass(frozen=True, kw_only=True)
class Ratio:
    """How many times better `of` is than `over`, whichever way better is; `over` None: `of`'s value is a ratio itself,
    a share of a bound."""

    of: str = OURS
    over: str | None = None
    target: float | None = None  # at least


@dataclass(frozen=True, kw_only=True)
class Case:
    """One line of work that all its contenders do."""

    name: str  # e.g. "n = 16, 4 floats"; with the workload's name, what `--compare` finds it by
    contenders: Sequence[Contender]  # in the order of tables
    parameters: Mapping[str, Any] = field(default_factory=dict)  # JSON; what the contenders' scripts read
    unit: str = "env-steps/s"
    better: Literal["more", "less"] = "more"
    ratios: Sequence[Ratio] = ()
    most_rounds: int | None = None  # where a measurement takes minutes
    timeout_s: float = HOUR_S  # of one measurement


@dataclass(frozen=True, kw_only=True)
class Workload:
    """A question that is asked of every contender."""

    name: str  # on the command line, e.g. "start-up"; its module is called so too, with underscores
    title: str  # one line, for `--list` and the table
    cases: Callable[[bool], Sequence[Case]]  # True: the few that `--quick` measures
