"""`rollout serve`: one policy, offered to many simulators elsewhere."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from importlib.util import find_spec
from typing import Any

__all__ = ["serve_forever"]


def serve_forever(options: Mapping[str, Any]) -> tuple[str, int]:
    """Serve as the command's options say, until a signal comes: what to say then, and the exit code.

    Raises `UsageError` where the policy or the address cannot be had.
    """
    import anyio

    from rollout.api import loop_options
    from rollout.errors import UsageError
    from rollout.policies.load import as_policy
    from rollout.serve.options import Serving
    from rollout.stop import Stop

    if find_spec("websockets") is None:
        raise UsageError("rollout serve needs websockets; run: pip install 'rollout-engine[remote]'")
    from rollout.serve.server import bound, run_server

    serving, stop = Serving.create(**options), Stop()
    # Loaded before there is a loop: that can take a minute, and Ctrl-C ends it.
    with (
        bound(serving.host, serving.port) as listener,
        as_policy(serving.policy, serving.config) as policy,
    ):
        run = partial(run_server, serving, listener, policy)
        anyio.run(stop.guard, run, lambda: False, backend_options=loop_options())
    return stop.farewell(), stop.exit_code
