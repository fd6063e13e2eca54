"""The options of `rollout verify`: those of `rollout run` that decide what is measured, and how."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import click

from rollout.arguments import run_options

__all__ = ["verify_options"]

SHARED: Final = {  # and what is said otherwise of them
    "policy": None,
    "policy_arg": None,
    "episodes": "Episodes per task.  [2]",
    "tasks": None,
    "seed": None,
    "horizon": None,
    "n_action_steps": None,
    "temporal_ensemble": None,
    "clip_actions": None,
    "workers": "Simulator processes of the second run, at least 2.  [auto]",
    "max_batch": "Most decisions in one forward of the second run.  [8]",
    "max_wait_ms": "How long its batches may wait to fill.  [50]",
    "device": None,
    "dtype": None,
    "compile": None,
    "deterministic": None,
    "protocol": None,
    "options": None,
    "render": None,
}


def verify_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Decorate a command with the options of `rollout verify`."""
    command = run_options(command)
    params: list[click.Parameter] = command.__click_params__  # type: ignore[attr-defined]
    command.__click_params__ = [param for param in params if param.name in SHARED]  # type: ignore[attr-defined]
    for param in command.__click_params__:  # type: ignore[attr-defined]
        param.help = SHARED[param.name] or param.help
    return click.option(
        "--json", "as_json", is_flag=True, help="For programs: strict JSON, and nothing else."
    )(command)
