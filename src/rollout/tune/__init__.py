"""`rollout tune`: what a run needs, measured, and how long it will take."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from rollout.config import EvalConfig

if TYPE_CHECKING:
    from rollout.tune.tuning import Tuning

__all__ = ["tune"]


async def tune(
    policy: Any,
    targets: str | Sequence[str],
    *,
    budget_s: float = 60.0,
    arguments: Sequence[str] = (),
    age_s: float = 0.0,
    **settings: Any,
) -> Tuning:
    """Measure `policy` and the simulators of `targets` for about `budget_s`, and say what to run with.

    `policy` and `settings` as in `rollout.evaluate`, `workers` and `max_batch` apart. `arguments` are the command
    line's, for the command that is advised, and `age_s` what starting has taken so far. Nothing is kept. Raises
    `UsageError` before anything starts where a setting is wrong, `RolloutError` where a simulator fails, and
    `PolicyError` where the policy does.
    """
    from rollout.policies.load import policy_name
    from rollout.tune.command import run_command
    from rollout.tune.measure import measure
    from rollout.tune.tuning import conclude

    targets = (targets,) if isinstance(targets, str) else tuple(targets)
    measuring = {
        "targets": targets,
        "workers": "auto",
        "max_batch": "auto",
        "out": None,
        "resume": False,
        "video": "none",
    }
    config = EvalConfig.create(**settings | measuring)
    measured = await measure(policy, config, budget_s, age_s)
    return conclude(
        measured,
        policy_name(policy),
        config.targets,
        config.dtype,
        lambda choice: run_command(arguments, choice),
    )
