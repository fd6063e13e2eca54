"""Processes that simulators leave behind, and the kernel's ways to find and end them (Linux)."""

from __future__ import annotations

import ctypes
import os
import signal
import sys
import time
from collections.abc import Collection
from contextlib import suppress

__all__ = ["adopt_orphans", "children", "die_with_parent", "end_all", "end_marked", "kill_all", "kill_group"]

_PR_SET_PDEATHSIG, _PR_SET_CHILD_SUBREAPER = 1, 36


def adopt_orphans() -> None:
    """From now on, a descendant whose parent dies becomes a child of this process, and not of init."""
    _prctl(_PR_SET_CHILD_SUBREAPER, 1)


def die_with_parent(number: int) -> None:
    """Have the kernel send this process signal `number` when its parent dies."""
    _prctl(_PR_SET_PDEATHSIG, number)


def children() -> list[int]:
    """The ids of this process's children, dead ones that nobody has waited for included."""
    try:
        with open(f"/proc/self/task/{os.getpid()}/children") as file:
            return [int(pid) for pid in file.read().split()]
    except OSError:  # a kernel without that file, or not Linux
        return [int(name) for name in _listed("/proc") if name.isdigit() and _parent(name) == os.getpid()]


def kill_all(pids: Collection[int]) -> None:
    """Send SIGKILL to each that is still there."""
    for pid in pids:
        with suppress(ProcessLookupError, PermissionError):
            os.kill(pid, signal.SIGKILL)


def kill_group(pid: int, number: int) -> None:
    """Send signal `number` to the process group of `pid`, where there is one left."""
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(pid, number)


def end_all(within_s: float) -> None:
    """Kill every descendant of this process, which must have adopted its orphans, and wait for their end."""
    deadline = time.monotonic() + within_s
    while time.monotonic() < deadline and _reaped_some_are_left():
        kill_all(children())
        time.sleep(0.005)  # orphans arrive one generation at a time


def end_marked(name: str, value: str, within_s: float) -> None:
    """Kill every process that was started with `name=value` in its environment, and wait for their end.

    Descendants inherit it, so they are found when the process that had adopted them is dead. One that was only forked
    shows the environment that its parent was started with. One that was started with another environment is not found.
    """
    mark = f"{name}={value}".encode()
    deadline = time.monotonic() + within_s
    while (pids := _marked(mark)) and time.monotonic() < deadline:
        kill_all(pids)
        time.sleep(0.005)  # what they started while they were being found is next


def _marked(mark: bytes) -> list[int]:
    return [int(pid) for pid in _listed("/proc") if pid.isdigit() and mark in _environ(pid).split(b"\0")]


def _environ(pid: str) -> bytes:
    try:
        with open(f"/proc/{pid}/environ", "rb") as file:
            return file.read()
    except OSError:  # another user's, or gone
        return b""


def _reaped_some_are_left() -> bool:
    try:
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass
    except ChildProcessError:
        return False
    return True


def _listed(directory: str) -> list[str]:
    try:
        return os.listdir(directory)
    except OSError:
        return []


def _parent(pid: str) -> int | None:
    try:
        with open(f"/proc/{pid}/stat") as file:
            return int(file.read().rpartition(")")[2].split()[1])  # a command's name may hold anything
    except OSError:
        return None


def _prctl(option: int, value: int) -> None:
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(option, value, 0, 0, 0)
