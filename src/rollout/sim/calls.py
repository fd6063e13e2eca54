"""What can be asked of a worker, whatever process it lives in, and what becomes of the answer."""

from __future__ import annotations

import sys
from collections.abc import Coroutine, Mapping
from contextlib import suppress
from typing import Protocol, TypeVar

import numpy as np
from msgspec.structs import replace

from rollout.errors import ProtocolError, ResultsError, SimulatorError, UsageError
from rollout.sim.limits import CLOSING, Limit, Limits, TimeLimits
from rollout.sim.protocol import (
    MAX_TEXT,
    MAX_TRACEBACK,
    Build,
    Built,
    Command,
    Describe,
    Described,
    Failed,
    Release,
    Released,
    Reply,
    Reset,
    ResetDone,
    Run,
    RunDone,
    Shared,
    Start,
    Started,
)
from rollout.sim.slab import SlabReader
from rollout.types import SuiteInfo, TaskInfo
from rollout.values import Array, Items

__all__ = ["Calls", "Worker", "check"]

R = TypeVar("R", bound=Reply)


class Worker(Protocol):
    """One simulator's parent-side handle. Strictly in turn: one call at a time."""

    index: int
    pid: int | None
    family: str | None  # what it was started for
    task: tuple[str, int] | None  # (suite, task_id) of the simulator that it holds
    info: TaskInfo | None  # of that simulator

    async def start(self, family: str, options: Mapping[str, str]) -> None: ...
    async def describe(self, name: str) -> SuiteInfo: ...
    async def release(self) -> None: ...
    async def build(self, suite: SuiteInfo, task_id: int) -> Built: ...
    async def reset(self, command: Reset) -> ResetDone: ...
    def read_shared(self, array: Shared) -> np.ndarray: ...
    def run(self, actions: Array | Items) -> Coroutine[None, None, RunDone]: ...
    async def aclose(self) -> None: ...


class Calls:
    """The calls of a `Worker`, in terms of one `_call`."""

    def __init__(
        self,
        index: int,
        limits: TimeLimits,
        environ: Mapping[str, str],
        registrations: Mapping[str, bytes] | None = None,
    ) -> None:
        """`registrations` are of environments that the worker would not know of (`Start`)."""
        self.index = index
        self.pid: int | None = None
        self.family: str | None = None
        self.task: tuple[str, int] | None = None
        self.info: TaskInfo | None = None
        self._limits = Limits(limits)
        self._environ = dict(environ)
        self._registrations = dict(registrations or {})
        self._slab = SlabReader(None)

    def read_shared(self, array: Shared) -> np.ndarray:
        """An array of the last reply that lies in the memory shared with the worker. Raises `ProtocolError`."""
        return self._slab.array(array)

    async def start(self, family: str, options: Mapping[str, str]) -> None:
        """Import the family's adapter in the worker."""
        command = Start(family, tuple(sys.path), self._environ, dict(options), self._registrations)
        started = await self._call(command, Started, self._limits.start)
        self.pid, self.family = started.pid, family

    async def describe(self, name: str) -> SuiteInfo:
        """List the tasks of a suite."""
        return (await self._call(Describe(name), Described, self._limits.listing)).suite

    async def release(self) -> None:
        """Close the simulator. What it raises there is nobody's loss."""
        with suppress(SimulatorError):
            await self._call(Release(), Released, CLOSING)
        self.task = self.info = None

    async def build(self, suite: SuiteInfo, task_id: int) -> Built:
        """Build a task's simulator."""
        built = await self._call(Build(suite, task_id), Built, self._limits.build)
        self.task, self.info = (suite.suite, task_id), built.task
        return built

    async def reset(self, command: Reset) -> ResetDone:
        """Start an episode."""
        placed = replace(command, slot=self._slab.free_slot())
        return await self._call(placed, ResetDone, self._limits.reset)

    def run(self, actions: Array | Items) -> Coroutine[None, None, RunDone]:
        """Execute an action chunk. Awaitable; not `async` itself, for one frame less to resume at every decision."""
        n_steps = actions.shape[0] if isinstance(actions, Array) else len(actions.items)
        return self._call(Run(actions, self._slab.free_slot()), RunDone, self._limits.steps(n_steps))

    def _call(self, command: Command, expected: type[R], limit: Limit) -> Coroutine[None, None, R]:
        """Send `command` and wait for the reply, which must be an `expected`."""
        raise NotImplementedError


def check(reply: Reply, expected: type[R]) -> R:
    """The reply, which must be an `expected`. Raises what a `Failed` stands for."""
    if isinstance(reply, expected):
        return reply
    if isinstance(reply, Failed):
        message = reply.message[:MAX_TEXT]
        if reply.ends_run is not None:
            raise (UsageError if reply.ends_run == "usage" else ResultsError)(message)
        trace = reply.traceback[-MAX_TRACEBACK:]
        raise SimulatorError(reply.type[:MAX_TEXT], message, trace, building=reply.building)
    raise ProtocolError(f"expected {expected.__name__}, got {type(reply).__name__}")
