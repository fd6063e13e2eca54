"""The parent's handle on the forkserver: fork a worker, kill it, hear of its death."""

from __future__ import annotations

import asyncio
import fcntl
import os
import secrets
import signal
import socket
import subprocess
import sys
from collections import deque
from collections.abc import Callable, Mapping, Sequence

import anyio
import msgspec

from rollout.sim.descendants import end_marked, kill_group
from rollout.sim.forkserver import MAX_MESSAGE, Event, Exited, Fork, Forked, Kill, Order, Refused
from rollout.sim.transport import Ends

__all__ = ["Forkserver"]

PRELOAD = ("gymnasium", "rollout.sim.server")
MARK = "ROLLOUT_FORKSERVER"  # in the environment of the forkserver and of all that descend from it
THREAD_LIMITS = {f"{library}_NUM_THREADS": "1" for library in ("OMP", "MKL", "OPENBLAS", "NUMEXPR")}


class Forkserver:
    """The forkserver process. Use as an async context manager; leaving it kills every descendant that is left.

    It imports the modules `preload` and the simulators of `families`, which workers then share. Nobody waits for
    that: the first workers only start so much later.
    """

    def __init__(
        self,
        environ: Mapping[str, str] | None = None,
        preload: Sequence[str] = PRELOAD,
        families: Sequence[str] = (),
    ) -> None:
        # One thread a worker: the parallelism is over workers. The user's own setting wins.
        self._environ = THREAD_LIMITS | dict(os.environ if environ is None else environ)
        self._preload, self._families = list(preload), list(families)
        self._listeners: dict[int, Callable[[Event], None]] = {}
        self._pids: dict[int, int] = {}  # of the workers that are alive
        # Those that found the socket full, with their descriptors: the forkserver imports, and reads nothing meanwhile.
        self._unsent: deque[tuple[Order, list[int]]] = deque()
        self._events = msgspec.msgpack.Decoder(Event)
        self._running = False
        self._has_forked = False
        self._forked = 0  # ids are never used twice: a late message must not meet another worker

    @property
    def pid(self) -> int:
        """The forkserver's process id."""
        return self._process.pid

    async def __aenter__(self) -> Forkserver:
        self._loop = asyncio.get_running_loop()
        self._launch()
        return self

    async def __aexit__(self, *_: object) -> None:
        self._disconnect()  # the order to kill what is left and to exit
        if not self._has_forked and self._process.poll() is None:
            # It may be importing still, which nobody needs any more.
            kill_group(self._process.pid, signal.SIGKILL)
        with anyio.CancelScope(shield=True):
            await anyio.to_thread.run_sync(self._reap)

    def fork(self, ends: Ends, listener: Callable[[Event], None], slab: int | None = None) -> int:
        """Fork a worker with (a copy of) `ends` of the connection, and return the id that `kill` takes.

        `slab` is the descriptor of the memory that it shares with this process.

        `listener` gets its `Forked` and its `Exited`, or its `Refused`. Raises `OSError` where the forkserver is gone
        and no other one could be started, or where no descriptor is left.
        """
        if not self._running:
            self._launch()  # the last one was killed, as the kernel does for want of memory: the run must go on
        self._forked += 1
        worker = self._forked
        self._listeners[worker] = listener
        try:
            descriptors = [ends.read, ends.write] + ([] if slab is None else [slab])
            self._order(Fork(worker, len(descriptors)), *descriptors)
        except OSError:
            self._listeners.pop(worker, None)
            raise
        return worker

    def kill(self, worker: int, grace_s: float) -> None:
        """Terminate the worker's process group, and kill it after `grace_s`."""
        self._order(Kill(worker, grace_s))

    def _launch(self) -> None:
        self._control, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            # Not 0, 1 or 2, where this process was started without them: those become the forkserver's own streams.
            inherited = fcntl.fcntl(theirs.fileno(), fcntl.F_DUPFD_CLOEXEC, 3)
        self._mark = secrets.token_hex(8)
        # `-c` with the path spelled out: works whatever __main__ is (a script, a notebook, a frozen tool).
        code = (
            f"import sys; sys.path[:] = {sys.path!r}; from rollout.sim.forkserver import main; "
            f"main({inherited}, {self._preload!r}, {self._families!r})"
        )
        try:
            self._process = subprocess.Popen(
                [sys.executable, "-c", code],
                pass_fds=[inherited],
                env=self._environ | {MARK: self._mark},
                stdin=subprocess.DEVNULL,
                start_new_session=True,  # a Ctrl-C at the terminal is the parent's to handle
            )
        except OSError:
            self._control.close()
            raise
        finally:
            os.close(inherited)
        self._control.setblocking(False)
        self._loop.add_reader(self._control.fileno(), self._readable)
        self._running, self._has_forked = True, False

    def _disconnect(self) -> None:
        if self._running:
            self._running = False
            self._loop.remove_reader(self._control.fileno())
            self._loop.remove_writer(self._control.fileno())
            self._control.close()
            while self._unsent:
                _close(self._unsent.popleft()[1])

    def _order(self, order: Order, *descriptors: int) -> None:
        if not self._running:
            return  # every worker is gone, as its listener was told
        if not self._unsent and self._sent(order, descriptors):
            return
        if not self._running:
            return
        self._unsent.append((order, _duplicates(descriptors)))
        self._loop.add_writer(self._control.fileno(), self._writable)

    def _sent(self, order: Order, descriptors: Sequence[int]) -> bool:
        """False where the socket has no room now or no reader any more. Raises `OSError` if it takes no descriptors."""
        try:
            socket.send_fds(self._control, [msgspec.msgpack.encode(order)], descriptors)
        except BlockingIOError:
            return False
        except OSError as exc:
            if descriptors and not isinstance(exc, ConnectionError):
                raise  # too many are on their way
            self._fail()
            return False
        return True

    def _writable(self) -> None:
        """There is room again for orders that wait."""
        while self._unsent:
            order, descriptors = self._unsent[0]
            try:
                if not self._sent(order, descriptors):
                    return
            except OSError as exc:
                self._loop.call_soon(self._deliver, Refused(order.worker, exc.strerror or str(exc)))
            self._unsent.popleft()
            _close(descriptors)
        self._loop.remove_writer(self._control.fileno())

    def _readable(self) -> None:
        try:
            while data := self._control.recv(MAX_MESSAGE):
                self._has_forked = True
                self._deliver(self._events.decode(data))
                if not self._running:
                    return  # a listener's answer found it gone
        except BlockingIOError:
            return
        except ConnectionError:
            pass
        self._fail()

    def _deliver(self, event: Event) -> None:
        listener = self._listeners.get(event.worker)
        if isinstance(event, Forked):
            self._pids[event.worker] = event.pid
        else:
            self._pids.pop(event.worker, None)
            self._listeners.pop(event.worker, None)
        if listener is not None:
            listener(event)

    def _fail(self) -> None:
        """The forkserver itself is gone: so is every worker, which the kernel killed with it."""
        self._disconnect()
        for pid in self._pids.values():
            kill_group(pid, signal.SIGKILL)  # what the worker had started
        status = self._ended()
        end_marked(MARK, self._mark, within_s=1.0)  # also in sessions of its own
        listeners, self._listeners = self._listeners, {}
        self._pids.clear()
        for worker, listener in listeners.items():
            # Not now: who called `fork` has not got its id yet.
            self._loop.call_soon(
                listener, Exited(worker, status, "the forkserver process ended unexpectedly")
            )

    def _ended(self) -> int:
        """How the forkserver ended, as an exit status or minus a signal: a simulator's import may have crashed it."""
        try:
            return self._process.wait(1.0)  # its end of the socket is closed: it is all but gone
        except subprocess.TimeoutExpired:
            return -signal.SIGKILL

    def _reap(self) -> None:
        try:
            self._process.wait(5.0)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        if self._process.returncode != 0:  # it was killed, and has ended nobody
            end_marked(MARK, self._mark, within_s=1.0)


def _duplicates(descriptors: Sequence[int]) -> list[int]:
    copies: list[int] = []
    try:
        copies.extend(os.dup(descriptor) for descriptor in descriptors)
    except OSError:
        _close(copies)
        raise
    return copies


def _close(descriptors: Sequence[int]) -> None:
    for descriptor in descriptors:
        os.close(descriptor)
