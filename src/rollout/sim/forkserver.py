"""The forkserver: a small single-threaded process that forks workers, reaps them, and keeps the tail of their logs.

`multiprocessing`'s forkserver re-imports the caller's `__main__` in every child (so a script needs a guard), does not
report who died until asked, and leaves grandchildren behind. This one imports nothing of the caller's, reports every
death at once with its status and the last lines that the worker printed, and kills whole process groups. It shares no
thread, lock or GL context with the parent, so forking is safe.

Messages travel over a `SOCK_SEQPACKET` socket as MessagePack; descriptors ride along (`SCM_RIGHTS`).
"""

from __future__ import annotations

import errno
import gc
import importlib
import os
import select
import selectors
import signal
import socket
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Final, TypeAlias

import msgspec
from msgspec import Struct

from rollout.sim.child import become_worker
from rollout.sim.descendants import adopt_orphans, children, die_with_parent, end_all, kill_all, kill_group

__all__ = ["Event", "Exited", "Fork", "Forked", "Kill", "Order", "Refused", "main"]

LOG_TAIL: Final = 16 << 10  # bytes kept of what a worker prints: enough for a traceback, never a flood
LOG_READ: Final = 64 << 10
LOG_PIPE: Final = 1 << 20  # the most that a pipe holds, unless root allowed more
MAX_MESSAGE: Final = 64 << 10


class _Message(Struct, frozen=True, array_like=True, tag=True):
    worker: int


class Fork(_Message, frozen=True):
    """Fork a worker; the descriptors that it reads from, writes to and shares memory in come with this message."""

    n_descriptors: int  # the last may be missing


class Kill(_Message, frozen=True):
    """End a worker's whole process group: SIGTERM, and SIGKILL after `grace_s` (at once where 0)."""

    grace_s: float


class Forked(_Message, frozen=True):
    pid: int


class Exited(_Message, frozen=True):
    """A worker is gone: `status` is its exit status, or minus the signal that killed it."""

    status: int
    log_tail: str


class Refused(_Message, frozen=True):
    """There is no such worker: the system had no process or descriptor left."""

    reason: str


Order: TypeAlias = Fork | Kill
Event: TypeAlias = Forked | Exited | Refused


class _Child:
    """A running worker, as the forkserver sees it. Its process group has its pid as id."""

    def __init__(self, worker: int, pid: int, log: int) -> None:
        self.worker, self.pid, self.log = worker, pid, log
        self.tail = bytearray()
        self.kill_at: float | None = None

    def drain(self) -> bytes | None:
        """Keep the tail of what was printed, and return the piece: empty at the log's end, None where nothing waits."""
        try:
            data = os.read(self.log, LOG_READ)
        except BlockingIOError:
            return None
        self.tail += data
        del self.tail[:-LOG_TAIL]
        return data


class _Forkserver:
    def __init__(
        self, control: socket.socket, serve: Callable[[int, int, int | None], None], parent: int
    ) -> None:
        self._control, self._serve, self._parent = control, serve, parent
        self._children: dict[int, _Child] = {}
        self._orders = msgspec.msgpack.Decoder(Order)
        self._own = frozenset(children())  # of an import: not an orphan of a worker
        self._selector = selectors.DefaultSelector()
        self._wake_read, self._wake_write = socket.socketpair()
        for sock in (control, self._wake_read, self._wake_write):
            sock.setblocking(False)
        signal.set_wakeup_fd(self._wake_write.fileno(), warn_on_full_buffer=False)
        for number in (signal.SIGCHLD, signal.SIGTERM):
            signal.signal(number, lambda *_: None)  # the wake-up descriptor does the work
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        self._selector.register(control, selectors.EVENT_READ, self._obey)
        self._selector.register(self._wake_read, selectors.EVENT_READ, self._reap)

    def run(self) -> None:
        """Until the parent closes the control socket or dies."""
        while os.getppid() == self._parent:
            for key, _ in self._selector.select(self._until_next_kill()):
                if self._selector.get_map().get(key.fd) is not key:
                    continue  # closed by an event before this one: the worker is gone, its descriptor another's
                if key.data() is False and key.fileobj is self._control:
                    return
            self._kill_overdue()

    def _until_next_kill(self) -> float | None:
        times = [child.kill_at for child in self._children.values() if child.kill_at is not None]
        return max(0.0, min(times) - time.monotonic()) if times else None

    def _kill_overdue(self) -> None:
        now = time.monotonic()
        for child in self._children.values():
            if child.kill_at is not None and child.kill_at <= now:
                child.kill_at = None
                kill_group(child.pid, signal.SIGKILL)

    def _obey(self) -> bool:
        """One order. False when the parent is gone."""
        try:
            data, descriptors, _, _ = socket.recv_fds(self._control, MAX_MESSAGE, 3)
        except BlockingIOError:
            return True
        except ConnectionError:
            return False
        if not data:
            return False
        match self._orders.decode(data):
            case Fork(worker=worker, n_descriptors=count):
                self._fork_or_refuse(worker, count, descriptors)
            case Kill(worker=worker, grace_s=grace_s):
                for child in self._children.values():
                    if child.worker == worker:
                        kill_group(child.pid, signal.SIGTERM if grace_s > 0 else signal.SIGKILL)
                        kill_group(child.pid, signal.SIGCONT)  # one that was stopped would not hear the first
                        child.kill_at = time.monotonic() + grace_s
        return True

    def _fork_or_refuse(self, worker: int, count: int, descriptors: list[int]) -> None:
        try:
            if len(descriptors) != count:
                raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))  # the kernel dropped what had no room
            self._fork(worker, *descriptors)
        except OSError as exc:
            self._tell(Refused(worker, exc.strerror or str(exc)))
        finally:
            for descriptor in descriptors:
                os.close(descriptor)

    def _fork(self, worker: int, read: int, write: int, slab: int | None = None) -> None:
        log_read, log_write = os.pipe()
        try:
            pid = os.fork()
            if pid == 0:
                become_worker(
                    lambda: self._serve(read, write, slab),
                    log_write,
                    lambda: self._let_go(log_read, log_write),
                )
        except OSError:
            os.close(log_read)
            raise
        finally:
            os.close(log_write)
        os.set_blocking(log_read, False)
        child = self._children[pid] = _Child(worker, pid, log_read)
        self._selector.register(log_read, selectors.EVENT_READ, lambda: self._drain(child))
        self._tell(Forked(worker, pid))

    def _let_go(self, *descriptors: int) -> None:
        """In the forked child: close everything of the forkserver's, and `descriptors`."""
        self._selector.close()
        for sock in (self._control, self._wake_read, self._wake_write):
            sock.close()
        for descriptor in (*descriptors, *(child.log for child in self._children.values())):
            os.close(descriptor)

    def _drain(self, child: _Child) -> None:
        if child.drain() == b"":
            self._selector.unregister(child.log)

    def _reap(self) -> None:
        """Every child that ended, orphans of workers included (this process is their reaper)."""
        with suppress(BlockingIOError):
            self._wake_read.recv(4096)
        dead: list[tuple[_Child, int]] = []
        while (ended := _ended()) is not None:
            child = self._children.pop(ended.si_pid, None)
            if child is not None:
                # Before the reaping, while the id cannot belong to anybody else.
                kill_group(child.pid, signal.SIGKILL)
                status = ended.si_status if ended.si_code == os.CLD_EXITED else -ended.si_status
                dead.append((child, status))
            os.waitpid(ended.si_pid, 0)
        # Workers keep their descendants until they die, so whatever else is a child here has lost its worker.
        kill_all(set(children()) - self._children.keys() - self._own)
        for child, status in dead:
            self._bury(child, status)

    def _bury(self, child: _Child, status: int) -> None:
        for _ in range(LOG_PIPE // LOG_READ):  # not for ever: an orphan may be printing still
            if not child.drain():
                break
        if child.log in self._selector.get_map():
            self._selector.unregister(child.log)
        os.close(child.log)
        self._tell(Exited(child.worker, status, child.tail.decode("utf-8", "replace")))

    def _tell(self, event: Event) -> None:
        try:
            self._control.setblocking(True)  # an event must not be lost; the parent's loop reads them at once
            self._control.send(msgspec.msgpack.encode(event))
        except OSError:
            pass  # the parent is gone, which the next select says too
        finally:
            self._control.setblocking(False)

    def end(self) -> None:
        """Kill every descendant: the workers' groups, then whatever was orphaned to this process."""
        for child in self._children.values():
            kill_group(child.pid, signal.SIGKILL)
        end_all(within_s=2.0)


def _ended() -> os.waitid_result | None:
    """A child that ended, which stays a zombie: its process group cannot become anybody else's yet."""
    try:
        return os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    except ChildProcessError:
        return None


def _hung_up(control: socket.socket) -> bool:
    """Whether the other end is closed, also where orders wait to be read."""
    poll = select.poll()
    poll.register(control, 0)
    return any(events & select.POLLHUP for _, events in poll.poll(0))


def main(control_fd: int, preload: list[str], families: list[str]) -> None:
    """Entry point of the forkserver process. Orders that come while it imports wait in the socket."""
    control, parent = socket.socket(fileno=control_fd), os.getppid()
    die_with_parent(signal.SIGKILL)  # an import may take minutes, or hang
    if _hung_up(control):
        return  # the parent was gone before
    for name in preload:
        importlib.import_module(name)
    from rollout.sim.preload import preload_simulators
    from rollout.sim.server import serve

    # From here on, nothing of this process belongs on the user's terminal.
    null = os.open(os.devnull, os.O_WRONLY)
    for stream in (1, 2):
        os.dup2(null, stream)
    if null > 2:  # else this was started without them
        os.close(null)
    preload_simulators(families)
    gc.collect()
    gc.freeze()  # children's collections then leave what they share with this process alone
    adopt_orphans()
    forkserver = _Forkserver(control, serve, parent)
    die_with_parent(signal.SIGTERM)  # from now on: wakes the loop, which then sees that its parent changed
    try:
        forkserver.run()
    finally:
        forkserver.end()
