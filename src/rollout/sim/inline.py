"""`--workers 0`: a simulator in the parent's own process, for debugging."""

from __future__ import annotations

import atexit
import gc
import os
from collections.abc import Mapping
from typing import TypeVar

import anyio
import msgspec

from rollout.envs.gl import abandon_contexts
from rollout.sim.calls import Calls, check
from rollout.sim.limits import Limit, TimeLimits
from rollout.sim.protocol import Close, Command, Reply, command_decoder, reply_decoder
from rollout.sim.server import Server

__all__ = ["InlineWorker"]

R = TypeVar("R", bound=Reply)


class InlineWorker(Calls):
    """`--workers 0`: the same server, called directly, so that `breakpoint()` works in a simulator.

    Messages pass through the codec as they do between processes, so that arrays are copied and typed alike.
    """

    def __init__(
        self,
        index: int,
        limits: TimeLimits,
        environ: Mapping[str, str],
        registrations: Mapping[str, bytes] | None = None,
    ) -> None:
        super().__init__(index, limits, environ, registrations)
        self._server = Server(inline=True)
        atexit.unregister(abandon_contexts)  # once is enough
        atexit.register(abandon_contexts)
        self._encode = msgspec.msgpack.Encoder().encode
        self._commands, self._replies = command_decoder(), reply_decoder()
        self._before = dict(os.environ)

    lost = False

    async def aclose(self) -> None:
        """Close the simulator, and give the process its own environment variables back."""
        self._server.handle(Close())
        gc.collect()  # simulators are full of cycles, and this process goes on
        for name in self._environ.keys() - self._before.keys():
            os.environ.pop(name, None)
        os.environ.update(self._before)

    async def _call(self, command: Command, expected: type[R], limit: Limit) -> R:
        received = self._commands.decode(bytearray(self._encode(command)))
        reply = self._server.handle(received)
        await anyio.lowlevel.checkpoint()  # let the display and Ctrl-C in
        return check(self._replies.decode(bytearray(self._encode(reply))), expected)
