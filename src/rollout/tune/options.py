"""The options of `rollout tune`: those of `rollout run` that decide what is measured."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import click

from rollout.arguments import run_options

__all__ = ["tune_options"]

SHARED: Final = (
    "policy",
    "policy_arg",
    "episodes",
    "tasks",
    "seed",
    "horizon",
    "n_action_steps",
    "temporal_ensemble",
    "clip_actions",
    "device",
    "dtype",
    "compile",
    "trust_remote_code",
    "deterministic",
    "protocol",
    "options",
    "render",
    "shard",
    "step_timeout",
    "reset_timeout",
    "start_timeout",
    "file",
)


def tune_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Decorate a command with the options of `rollout tune`."""
    command = run_options(command)
    params: list[click.Parameter] = command.__click_params__  # type: ignore[attr-defined]
    command.__click_params__ = [param for param in params if param.name in SHARED]  # type: ignore[attr-defined]
    command = click.option(
        "--json", "as_json", is_flag=True, help="For programs: strict JSON, and nothing else."
    )(command)
    return click.option(
        "--budget",
        "budget_s",
        type=click.FloatRange(1.0),
        default=60.0,
        metavar="S",
        help="Seconds that measuring may take, about.  [60]",
    )(command)
