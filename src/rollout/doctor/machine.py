"""Cores, memory, descriptors and the terminal. What is judged is passed in; nothing here is slow."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import TextIO

from rollout.display.terminal import can_move_cursor
from rollout.doctor.findings import Finding
from rollout.resources import workers_that_fit
from rollout.sim.processes import THREAD_LIMITS

__all__ = [
    "check_cores",
    "check_descriptors",
    "check_memory",
    "check_shared_memory",
    "check_terminal",
    "check_threads",
]

GB = 1e9
SMALL_SHM = 64 * 2**20  # what Docker gives by default, in bytes
WORKER_DESCRIPTORS = 4
PARENT_DESCRIPTORS = 64
THREAD_VARIABLES = (*THREAD_LIMITS, "LP_NUM_THREADS")


def check_cores(usable: int, all_cores: int) -> list[Finding]:
    """How many cores there are to use."""
    limited = f" of {all_cores}, by affinity or CPU quota" if usable < all_cores else ""
    return [Finding(level="ok", subject="cores", detail=f"{usable}{limited}")]


def check_memory(available: int, worker_gb: Mapping[str, float]) -> list[Finding]:
    """The available memory in bytes, and how many workers of each installed simulator fit into it."""
    fits = {name: workers_that_fit(available, size) for name, size in worker_gb.items()}
    detail = f"{available / GB:.1f} GB available"
    if fits:
        detail += f", enough for {' or '.join(f'{count} {name}' for name, count in fits.items())} workers"
    if 0 in fits.values():
        return [Finding(level="warning", subject="memory", detail=detail, fix="ps aux --sort=-rss | head")]
    return [Finding(level="ok", subject="memory", detail=detail)]


def check_shared_memory(directory: Path) -> list[Finding]:
    """The size of /dev/shm, which torch's data loaders and many simulators share arrays through."""
    fix = "docker run --shm-size=1g …"
    if not os.access(directory, os.W_OK):
        return [Finding(level="warning", subject="/dev/shm", detail="missing, or not writable", fix=fix)]
    state = os.statvfs(directory)
    size, free = state.f_blocks * state.f_frsize, state.f_bavail * state.f_frsize
    detail = f"{free / GB:.1f} GB free of {size / GB:.1f} GB"
    if free < SMALL_SHM // 2:
        full = size >= SMALL_SHM
        return [
            Finding(
                level="warning", subject="/dev/shm", detail=detail, fix="ls -lS /dev/shm" if full else fix
            )
        ]
    return [Finding(level="ok", subject="/dev/shm", detail=detail)]


def check_descriptors(soft: int, hard: int, cores: int) -> list[Finding]:
    """The limit of open files, and how many workers it allows."""
    allowed = max(0, soft - PARENT_DESCRIPTORS) // WORKER_DESCRIPTORS
    detail = f"limit {soft}: about {allowed} workers"
    if soft < 0:  # RLIM_INFINITY
        return [Finding(level="ok", subject="open files", detail="no limit")]
    if allowed >= 2 * cores:
        return [Finding(level="ok", subject="open files", detail=detail)]
    more = 65536 if hard < 0 else min(hard, 65536)
    fix = f"ulimit -n {more}" if more > soft else "docker run --ulimit nofile=65536 …"
    return [
        Finding(
            level="warning",
            subject="open files",
            fix=fix,
            detail=f"{detail}, fewer than the {2 * cores} that {cores} cores can use",
        )
    ]


def check_threads(environ: Mapping[str, str], cores: int) -> list[Finding]:
    """Whether the user's own settings give each worker several threads."""
    wide = [name for name in THREAD_VARIABLES if environ.get(name, "").isdigit() and int(environ[name]) > 1]
    if not wide:
        return [Finding(level="ok", subject="threads", detail="one a worker")]
    settings = ", ".join(f"{name}={environ[name]}" for name in wide)
    return [
        Finding(
            level="warning",
            subject="threads",
            fix=f"unset {' '.join(wide)}",
            detail=f"{settings}: each of about {2 * cores} workers starts so many on {cores} cores",
        )
    ]


def check_terminal(stream: TextIO) -> list[Finding]:
    """What a run can show on `stream`."""
    if not stream.isatty():
        return [Finding(level="ok", subject="terminal", detail="none: a run prints plain lines")]
    columns = os.get_terminal_size(stream.fileno()).columns
    if not can_move_cursor(stream):
        fix = "export TERM=xterm-256color LANG=C.UTF-8"
        return [
            Finding(
                level="warning",
                subject="terminal",
                fix=fix,
                detail="it moves no cursor or shows no Unicode: a run prints plain lines",
            )
        ]
    return [Finding(level="ok", subject="terminal", detail=f"{columns} columns, live view")]
