"""What rendering on demand, the fast reset and the preloaded forkserver are worth.

* steps: a whole evaluation at 8 steps a decision, with a policy that reads every camera and returns at once: once with
  its one frame a decision, once with a history of 8 (`n_obs_steps=8`), for which every step is rendered. Resets are not
  in it.
* reset: LIBERO's `env.reset()` alone, hard (the model compiled and the GL context made anew) and fast.
* start: the whole way from one episode to the first observation of the next (settle steps, one frame a camera).
* build: what a worker takes from nothing built to a built simulator, its imports done.
* workers: seconds until 8 LIBERO workers have answered, imports done, after the forkserver's preload.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from benchmarks.workload import OURS, Case, Contender, Ratio, Workload

__all__ = ["WORKLOAD"]


def _side(name: str, measured: str, **arguments: Any) -> Contender:
    parameters = {"measured": measured, "arguments": arguments}
    return Contender(name=name, module="simulators", parameters=parameters)


def _case(name: str, unit: str, ours: Contender, other: Contender | None = None) -> Case:
    return Case(
        name=name,
        contenders=(ours,) if other is None else (ours, other),
        unit=unit,
        better="more" if unit == "steps/s" else "less",
        ratios=() if other is None else (Ratio(over=other.name),),
        most_rounds=3,
    )


def cases(quick: bool) -> Sequence[Case]:
    """LIBERO's and Meta-World's; quick: Meta-World's."""
    every_step, hard = "every step rendered", "hard reset"
    metaworld = [
        _case(
            "Meta-World steps, chunk 8, 480 × 480",
            "steps/s",
            _side(OURS, "metaworld_steps", n_obs_steps=1),
            _side(every_step, "metaworld_steps", n_obs_steps=8),
        ),
        _case("Meta-World build", "s", _side(OURS, "metaworld_build"), _side("MT1", "metaworld_build_mt1")),
    ]
    libero = [
        _case(
            "LIBERO steps, chunk 8, two cameras of 256 × 256",
            "steps/s",
            _side(OURS, "libero_steps", n_obs_steps=1),
            _side(every_step, "libero_steps", n_obs_steps=8),
        ),
        _case(
            "LIBERO reset",
            "s",
            _side(OURS, "libero_reset", reset="fast"),
            _side(hard, "libero_reset", reset="hard"),
        ),
        _case(
            "LIBERO start of an episode",
            "s",
            _side(OURS, "libero_start", reset="fast"),
            _side(hard, "libero_start", reset="hard"),
        ),
        _case("LIBERO build", "s", _side(OURS, "libero_build")),
        _case("LIBERO, 8 workers up after the preload", "s", _side(OURS, "libero_workers")),
    ]
    return metaworld if quick else metaworld + libero


WORKLOAD = Workload(
    name="simulators",
    title="rendering on demand, reset, build: the same engine with and without",
    cases=cases,
)
