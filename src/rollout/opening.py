"""Opening a policy for as long as it is evaluated, with Ctrl-C heard meanwhile."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable
from contextlib import AbstractContextManager, ExitStack, asynccontextmanager
from functools import partial
from math import isfinite
from typing import Any

from rollout.config import EvalConfig
from rollout.engine.meant import MEANT
from rollout.engine.thread import in_thread
from rollout.errors import PolicyError, UsageError
from rollout.policies.base import Policy, PolicySpec
from rollout.policies.load import as_policy, is_opened

__all__ = ["check_spec", "opened_policy"]


@asynccontextmanager
async def opened_policy(policy: Any, config: EvalConfig) -> AsyncIterator[Policy]:
    """`as_policy`. A checkpoint or a server is opened in a thread, so that Ctrl-C is heard meanwhile; anything else on
    the loop's own, where a factory may do what only a main thread can, and stop at a breakpoint."""
    manager = as_policy(policy, config)
    with ExitStack() as stack:
        if isinstance(policy, str) and is_opened(policy):
            adapted = await in_thread(partial(_made, manager))
        else:
            adapted = _made(manager)
        stack.push(manager)
        yield adapted


def _made(manager: AbstractContextManager[Policy]) -> Policy:
    try:
        return manager.__enter__()
    except (Exception, *MEANT):
        raise
    except BaseException as exc:
        raise PolicyError(f"making the policy raised {type(exc).__name__}: {exc}") from exc


def check_spec(spec: PolicySpec, name: str, families: Iterable[str]) -> None:
    """Raise `UsageError` where the policy called `name`, with this `spec`, cannot be evaluated in `families`."""
    for field in ("n_obs_steps", "chunk_size", "n_action_steps", "calls", "max_batch"):
        value = getattr(spec, field)
        if value is not None and value < 1:
            raise UsageError(f"policy {name!r}: its spec has {field} {value}, which must be at least 1")
    if spec.temporal_ensemble is not None and not isfinite(spec.temporal_ensemble):
        raise UsageError(f"policy {name!r}: its spec has temporal_ensemble {spec.temporal_ensemble}")
    for family in families:
        if spec.families is not None and family not in spec.families:
            known = ", ".join(spec.families)
            raise UsageError(f"policy {name!r} cannot act in {family}: it knows {known}")
