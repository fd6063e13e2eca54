"""The forkserver: a small single-threaded process that forks workers, reaps them, and keeps the tail of their logs.

`multiprocessing`'s forkserver re-imports the caller's `__main__` in every child (so a script needs a guard), does not
report who died until asked, and leaves grandchildren behind. This one imports nothing of the caller's, reports every
death at once with its status and the last lines that the worker printed, and kills whole process groups. It shares no
thread, lock or GL context with the parent, so forking is safe.

Messages travel over a `SOCK_SEQPACKET` socket as MessagePack; descriptors ride along (`SCM_RIGHTS`).
"""

from __future__ import annotations

import contextlib
import ctypes
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
from typing import Final, NoReturn, TypeAlias

import msgspec
from msgspec import Struct

__all__ = ["Event", "Exited", "Fork", "Forked", "Kill", "Order", "main"]

LOG_TAIL: Final = 16 << 10  # bytes kept of what a worker prints: enough for a traceback, never a flood
MAX_MESSAGE: Final = 64 << 10
_PR_SET_PDEATHSIG, _PR_SET_CHILD_SUBREAPER = 1, 36


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


Order: TypeAlias = Fork | Kill
Event: TypeAlias = Forked | Exited


class _Child:
    """A running worker, as the forkserver sees it. Its process group has its pid as id."""

    def __init__(self, worker: int, pid: int, log: int) -> None:
        self.worker, self.pid, self.log = worker, pid, log
        self.tail = bytearray()
        self.kill_at: float | None = None

    def drain(self) -> bool:
        """Keep the tail of what was printed. False at the end of the log or when nothing waits."""
        try:
            data = os.read(self.log, 1 << 16)
        except BlockingIOError:
            return False
        self.tail += data
        del self.tail[:-LOG_TAIL]
        return bool(data)

    def kill(self, number: int) -> None:
        with contextlib.suppress(ProcessLookupError, PermissionError):  # the group is gone already
            os.killpg(self.pid, number)


class _Forkserver:
    def __init__(self, control: socket.socket, serve: Callable[[int, int], None]) -> None:
        self._control, self._serve = control, serve
        self._children: dict[int, _Child] = {}
        self._orders = msgspec.msgpack.Decoder(Order)
        self._parent = os.getppid()
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
                child.kill(signal.SIGKILL)

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
                self._fork(worker, *descriptors)
            case Kill(worker=worker, grace_s=grace_s):
                for child in self._children.values():
                    if child.worker == worker:
                        child.kill(signal.SIGTERM if grace_s > 0 else signal.SIGKILL)
                        child.kill_at = time.monotonic() + grace_s
        return True

    def _fork(self, worker: int, read: int, write: int) -> None:
        log_read, log_write = os.pipe()
        pid = os.fork()
        if pid == 0:
            self._become_worker(read, write, log_read, log_write)
        for descriptor in (read, write, log_write):
            os.close(descriptor)
        os.set_blocking(log_read, False)
        child = self._children[pid] = _Child(worker, pid, log_read)
        self._selector.register(log_read, selectors.EVENT_READ, lambda: self._drain(child))
        self._tell(Forked(worker, pid))

    def _become_worker(self, read: int, write: int, log_read: int, log_write: int) -> NoReturn:
        """In the forked child: own session and group, own standard streams, nothing of the forkserver's."""
        status = 1
        try:
            os.setsid()
            _die_with_parent(signal.SIGKILL)
            if hasattr(os, "SCHED_BATCH"):
                # Workers compute: being woken must not take the core from the parent, who feeds the others (a third
                # of the CPU time per message, benchmarks/transport.py).
                os.sched_setscheduler(0, os.SCHED_BATCH, os.sched_param(0))
            signal.set_wakeup_fd(-1)
            for number in (signal.SIGCHLD, signal.SIGTERM, signal.SIGINT):
                signal.signal(number, signal.SIG_DFL)
            os.dup2(log_write, 1)
            os.dup2(log_write, 2)
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
                with contextlib.suppress(Exception):
                    stream.flush()
            # No interpreter shutdown: simulators' __del__ and atexit hooks print EGL tracebacks, or hang.
            os._exit(status & 0xFF)

    def _drain(self, child: _Child) -> None:
        if not child.drain():
            self._selector.unregister(child.log)

    def _reap(self) -> None:
        """Every child that ended, orphans of workers included (this process is their reaper)."""
        with contextlib.suppress(BlockingIOError):
            self._wake_read.recv(4096)
        while True:
            try:
                ended = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
            except ChildProcessError:
                return
            if ended is None:
                return
            child = self._children.pop(ended.si_pid, None)
            if child is not None:
                # Before the reaping, while the id cannot belong to anybody else.
                child.kill(signal.SIGKILL)
            os.waitpid(ended.si_pid, 0)
            if child is not None:
                status = ended.si_status if ended.si_code == os.CLD_EXITED else -ended.si_status
                self._bury(child, status)

    def _bury(self, child: _Child, status: int) -> None:
        while child.drain():
            pass
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
            child.kill(signal.SIGKILL)
        deadline = time.monotonic() + 2.0
        while time.monotonic() < deadline and _has_children():
            for pid in _children_of_this_process():
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            time.sleep(0.005)  # only here, at the very end: orphans arrive one generation at a time


def _has_children() -> bool:
    try:
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass
    except ChildProcessError:
        return False
    return True


def _children_of_this_process() -> list[int]:
    try:
        with open("/proc/self/task/%d/children" % os.getpid()) as file:  # noqa: UP031
            return [int(pid) for pid in file.read().split()]
    except OSError:
        return []  # not Linux, or a kernel without it: the groups were killed already


def _prctl(option: int, value: int) -> None:
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(option, value, 0, 0, 0)


def _die_with_parent(number: int) -> None:
    _prctl(_PR_SET_PDEATHSIG, number)


def main(control_fd: int, preload: list[str], families: list[str]) -> None:
    """Entry point of the forkserver process. Orders that come while it imports wait in the socket."""
    control = socket.socket(fileno=control_fd)
    for name in preload:
        importlib.import_module(name)
    from rollout.sim.preload import preload_simulators
    from rollout.sim.server import serve

    with open(
        os.devnull, "wb"
    ) as null:  # from here on, nothing of this process belongs on the user's terminal
        os.dup2(null.fileno(), 1)
        os.dup2(null.fileno(), 2)
    preload_simulators(families)
    gc.collect()
    gc.freeze()  # children's collections then leave what they share with this process alone
    _prctl(_PR_SET_CHILD_SUBREAPER, 1)
    _die_with_parent(signal.SIGTERM)  # wakes the loop, which then sees that its parent changed
    forkserver = _Forkserver(control, serve)
    try:
        forkserver.run()
    finally:
        forkserver.end()
