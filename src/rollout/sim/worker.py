"""The parent's end of one simulator: ask, and get the answer or an exception that says what became of it."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections.abc import Mapping
from typing import TypeVar

import anyio

from rollout.errors import (
    ProtocolError,
    RolloutError,
    WorkerDied,
    WorkerTimeout,
)
from rollout.resources import memory_held, oom_kills
from rollout.sim.calls import Calls, check
from rollout.sim.forkserver import Event, Exited, Forked, Refused
from rollout.sim.limits import CLOSING, Limit, TimeLimits
from rollout.sim.processes import Forkserver
from rollout.sim.protocol import (
    Close,
    Closed,
    Command,
    Reply,
)
from rollout.sim.slab import SlabReader, open_slab
from rollout.sim.transport import LoopConnection, open_pipes

__all__ = ["WorkerProcess"]

R = TypeVar("R", bound=Reply)
FAULT_GRACE_S = 0.5
KILL_GRACE_S = 1.0  # between SIGTERM, at which a worker prints where it hangs, and SIGKILL


class WorkerProcess(Calls):
    """A worker in a process of its own.

    Its death is told by the forkserver, never inferred from the connection; `check_deadline` is called from one
    watchdog, because a timer for every call would cost more than the call. What it printed last is in the
    `log_tail` of the error that it died with, at the latest when `aclose` has returned.
    """

    def __init__(
        self,
        index: int,
        forkserver: Forkserver,
        limits: TimeLimits,
        environ: Mapping[str, str],
        registrations: Mapping[str, bytes] | None = None,
    ) -> None:
        super().__init__(index, limits, environ, registrations)
        self._forkserver = forkserver
        self._loop = asyncio.get_running_loop()
        self._reply: asyncio.Future[Reply] | None = None
        self._deadline: float | None = None  # on `time.monotonic`
        self._limit = CLOSING
        self._oom_kills = oom_kills()  # until now
        self._fault: WorkerDied | None = None  # why it must die, or why it died
        self._condemned = False
        self._exited = anyio.Event()
        ours, theirs = open_pipes()
        slab = None
        try:
            slab = open_slab()
            self._slab = SlabReader(slab)
            self._id = forkserver.fork(theirs, self._on_event, slab)
        except OSError:
            ours.close()
            self._slab.close()
            raise
        finally:
            theirs.close()
            if slab is not None:
                os.close(slab)
        self._connection = LoopConnection(ours, self._on_reply, self._on_fault)

    @property
    def lost(self) -> bool:
        """Whether it is dead or dying: no call to it can succeed."""
        return self._fault is not None

    @property
    def memory(self) -> int:
        """Bytes that it holds now for itself; 0 where that is not known."""
        return memory_held(self.pid, own=True) if self.pid is not None else 0

    def check_deadline(self, now: float) -> None:
        """Kill the worker if its call is overdue (`now` from `time.monotonic`)."""
        if self._deadline is not None and now > self._deadline:
            self._deadline = None
            self._condemn(WorkerTimeout(f"{self._limit.told}: worker {self.index} was killed"))

    def extend_deadline(self, seconds: float) -> None:
        """Give the call that much longer: this process did not run for so long, and could not take the answer."""
        if self._deadline is not None:
            self._deadline += seconds

    async def aclose(self) -> None:
        """Close the simulator and end the process: politely, then not. Idempotent; never raises."""
        with anyio.move_on_after(CLOSING.seconds, shield=True):
            try:
                if self._fault is None and self._reply is None and self.family is not None:
                    await self._call(Close(), Closed, CLOSING)
                    await self._exited.wait()
            except RolloutError:
                pass  # a simulator that cannot close is killed all the same
        if not self._exited.is_set():
            if not self._condemned:  # else it is being killed, and may be printing where it hung
                self._forkserver.kill(self._id, 0.0)
            if self.pid is not None:  # else the forkserver is importing still, and obeys when it has done
                with anyio.move_on_after(2 * KILL_GRACE_S, shield=True):
                    await self._exited.wait()
        self._connection.close()
        self._slab.close()

    async def _call(self, command: Command, expected: type[R], limit: Limit) -> R:
        if self._fault is not None:
            raise self._fault
        assert self._reply is None  # strictly in turn
        self._reply = self._loop.create_future()
        self._deadline, self._limit = time.monotonic() + limit.seconds, limit
        try:
            self._connection.send(command)
            reply = await self._reply
        except asyncio.CancelledError:
            # An answer will come that nobody waits for: the worker is of no use any more.
            self._condemn(WorkerDied("its call was cancelled"), grace_s=0.0)
            raise
        finally:
            self._reply = self._deadline = None
        return check(reply, expected)

    def _on_reply(self, reply: Reply) -> None:
        if self._reply is None or self._reply.done():
            self._on_fault(ProtocolError("a reply that nobody asked for"))
        else:
            self._reply.set_result(reply)

    def _on_fault(self, exc: Exception) -> None:
        # The supervisor's report of a death names its cause, and may be a moment behind the closed connection.
        fault = WorkerDied(f"worker {self.index} broke the protocol: {exc}")
        self._loop.call_later(FAULT_GRACE_S, self._condemn, fault)

    def _on_event(self, event: Event) -> None:
        match event:
            case Forked(pid=pid):
                self.pid = pid
            case Exited(status=status, log_tail=tail):
                self._connection.drain()  # an answer sent just before the end still counts
                self._fail(WorkerDied(describe_exit(status) + self._memory_hint(status)))
                if self._fault is not None:
                    self._fault.log_tail = tail
                self._exited.set()
            case Refused(reason=reason):
                unmade = WorkerDied(f"worker {self.index} could not be made: {reason}")
                unmade.unmade = True
                self._fail(unmade)
                self._exited.set()

    def _memory_hint(self, status: int) -> str:
        if status != -signal.SIGKILL:
            return ""
        if self._oom_kills is None:
            return " (out of memory? fewer --workers need less)"
        if oom_kills() == self._oom_kills:
            return " (out of memory? the kernel counts no such kill: somebody else sent it)"
        return " (out of memory? the kernel has killed for want of it meanwhile: fewer --workers need less)"

    def _condemn(self, fault: WorkerDied, grace_s: float = KILL_GRACE_S) -> None:
        """The worker must die; the caller hears why."""
        if not self._exited.is_set():
            self._fail(fault)
            self._condemned = True
            self._forkserver.kill(self._id, grace_s)

    def _fail(self, fault: WorkerDied) -> None:
        if self._fault is None:
            self._fault = fault
        if self._reply is not None and not self._reply.done():
            self._reply.set_exception(self._fault)


def describe_exit(status: int) -> str:
    """What an exit status means, in words; negative is a signal."""
    if status >= 0:
        return f"the worker process exited with status {status}"
    try:
        name = signal.Signals(-status).name
    except ValueError:
        name = f"signal {-status}"
    return f"the worker process was killed by {name}"
