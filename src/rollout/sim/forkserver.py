"""The forkserver: a small single-threaded process that forks workers, reaps them, and keeps the tail of their logs.

`multiprocessing`'s forkserver re-imports the caller's `__main__` in every child (so a script needs a guard), does not
report who died until asked, and leaves grandchildren behind. This one imports nothing of the caller's, reports every
death at once with its status and the last lines that the worker printed, and kills whole process groups. It shares no
thread, lock or GL context with the parent, so forking is safe.

Messages travel over a `SOCK_SEQPACKET` socket as MessagePack; descriptors ride along (`SCM_RIGHTS`).
"""

from __future__ import annotations

import errno
import faulthandler
import gc
import importlib
import io
import os
import selectors
import signal
import socket
import sys
import time
import traceback
from collections.abc import Callable
from contextlib import suppress
from typing import Final, NoReturn, TypeAlias

import msgspec
from msgspec import Struct

from rollout.sim.descendants import adopt_orphans, children, die_with_parent, end_all, kill_all, kill_group

__all__ = ["Event", "Exited", "Fork", "Forked", "Kill", "Order", "Refused", "main"]

LOG_TAIL: Final = 16 << 10  # bytes kept of what a worker prints: enough for a traceback, never a flood
LOG_READ: Final = 64 << 10
LOG_PIPE: Final = 1 << 20  # the most that a pipe holds, unless root allowed more
MAX_MESSAGE: Final = 64 << 10


class _Message(Struct, frozen=True, array_like=True, tag=True):
    worker: int


class Fork(_Message, frozen=True):
    """Fork a worker; the descriptors that it reads from and writes to come with this message."""


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

    def drain(self) -> bool:
        """Keep the tail of what was printed. False at the end of the log or when nothing waits."""
        try:
            data = os.read(self.log, LOG_READ)
        except BlockingIOError:
            return False
        self.tail += data
        del self.tail[:-LOG_TAIL]
        return bool(data)


class _Forkserver:
    def __init__(self, control: socket.socket, serve: Callable[[int, int], None]) -> None:
        self._control, self._serve = control, serve
        self._children: dict[int, _Child] = {}
        self._orders = msgspec.msgpack.Decoder(Order)
        self._parent = os.getppid()
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
            data, descriptors, _, _ = socket.recv_fds(self._control, MAX_MESSAGE, 2)
        except BlockingIOError:
            return True
        except ConnectionError:
            return False
        if not data:
            return False
        match self._orders.decode(data):
            case Fork(worker=worker):
                self._fork_or_refuse(worker, descriptors)
            case Kill(worker=worker, grace_s=grace_s):
                for child in self._children.values():
                    if child.worker == worker:
                        kill_group(child.pid, signal.SIGTERM if grace_s > 0 else signal.SIGKILL)
                        kill_group(child.pid, signal.SIGCONT)  # one that was stopped would not hear the first
                        child.kill_at = time.monotonic() + grace_s
        return True

    def _fork_or_refuse(self, worker: int, descriptors: list[int]) -> None:
        try:
            if len(descriptors) != 2:
                raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))  # the kernel dropped what had no room
            self._fork(worker, *descriptors)
        except OSError as exc:
            self._tell(Refused(worker, exc.strerror or str(exc)))
        finally:
            for descriptor in descriptors:
                os.close(descriptor)

    def _fork(self, worker: int, read: int, write: int) -> None:
        log_read, log_write = os.pipe()
        try:
            pid = os.fork()
            if pid == 0:
                self._become_worker(read, write, log_read, log_write)
        except OSError:
            os.close(log_read)
            raise
        finally:
            os.close(log_write)
        os.set_blocking(log_read, False)
        child = self._children[pid] = _Child(worker, pid, log_read)
        self._selector.register(log_read, selectors.EVENT_READ, lambda: self._drain(child))
        self._tell(Forked(worker, pid))

    def _become_worker(self, read: int, write: int, log_read: int, log_write: int) -> NoReturn:
        """In the forked child: own session and group, own standard streams, nothing of the forkserver's."""
        status = 1
        try:
            os.setsid()
            die_with_parent(signal.SIGKILL)
            # What a simulator starts stays below its worker, also in a session of its own: when the worker is gone,
            # the forkserver knows an orphan by being its parent.
            adopt_orphans()
            if hasattr(os, "SCHED_BATCH"):
                # Workers compute: being woken must not take the core from the parent, who feeds the others (a third
                # of the CPU time per message, benchmarks/transport.py).
                os.sched_setscheduler(0, os.SCHED_BATCH, os.sched_param(0))
            signal.set_wakeup_fd(-1)
            for number in (signal.SIGCHLD, signal.SIGTERM, signal.SIGINT):
                signal.signal(number, signal.SIG_DFL)
            os.dup2(log_write, 1)
            os.dup2(log_write, 2)
            # Where a crash or a time-out met it: the record of the episode has the last lines of the log.
            faulthandler.enable(2)
            faulthandler.register(signal.SIGTERM, file=2, chain=True)
            for stream in (sys.stdout, sys.stderr):
                if isinstance(stream, io.TextIOWrapper):
                    stream.reconfigure(line_buffering=True)  # a killed process flushes nothing
            self._selector.close()
            for sock in (self._control, self._wake_read, self._wake_write):
                sock.close()
            for descriptor in (log_read, log_write, *(child.log for child in self._children.values())):
                os.close(descriptor)
            self._serve(read, write)
            status = 0
        except SystemExit as exc:
            status = exc.code if isinstance(exc.code, int) else int(exc.code is not None)
        except BaseException:
            traceback.print_exc()
        finally:
            for stream in (sys.stdout, sys.stderr):
                with suppress(Exception):
                    stream.flush()
            # No interpreter shutdown: simulators' __del__ and atexit hooks print EGL tracebacks, or hang.
            os._exit(status & 0xFF)

    def _drain(self, child: _Child) -> None:
        if not child.drain():
            self._selector.unregister(child.log)

    def _reap(self) -> None:
        """Every child that ended, orphans of workers included (this process is their reaper)."""
        with suppress(BlockingIOError):
            self._wake_read.recv(4096)
        while (ended := _ended()) is not None:
            child = self._children.pop(ended.si_pid, None)
            if child is not None:
                # Before the reaping, while the id cannot belong to anybody else.
                kill_group(child.pid, signal.SIGKILL)
            os.waitpid(ended.si_pid, 0)
            # Workers keep their descendants until they die, so whatever else is a child here has lost its worker.
            kill_all(set(children()) - self._children.keys() - self._own)
            if child is not None:
                self._bury(child, ended.si_status if ended.si_code == os.CLD_EXITED else -ended.si_status)

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


def main(control_fd: int, preload: list[str], families: list[str]) -> None:
    """Entry point of the forkserver process. Orders that come while it imports wait in the socket."""
    control = socket.socket(fileno=control_fd)
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
    die_with_parent(signal.SIGTERM)  # wakes the loop, which then sees that its parent changed
    forkserver = _Forkserver(control, serve)
    try:
        forkserver.run()
    finally:
        forkserver.end()
