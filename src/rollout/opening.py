"""Opening a policy for as long as it is evaluated, with Ctrl-C heard meanwhile."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AbstractContextManager, ExitStack, asynccontextmanager
from functools import partial
from typing import Any

from rollout.config import EvalConfig
from rollout.engine.meant import MEANT
from rollout.engine.thread import in_thread
from rollout.errors import PolicyError
from rollout.policies.base import Policy
from rollout.policies.load import as_policy, is_opened

__all__ = ["opened_policy"]


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
