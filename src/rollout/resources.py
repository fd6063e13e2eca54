"""What this machine lets us use: cores and memory, within the limits of control groups (v1 and v2)."""

from __future__ import annotations

import ctypes
import os
import time
from collections.abc import Iterator
from contextlib import suppress
from math import ceil, inf
from pathlib import Path

__all__ = [
    "auto_workers",
    "available_memory",
    "core_times",
    "cpu_time",
    "machine_time",
    "memory_held",
    "oom_kills",
    "peak_memory",
    "process_age",
    "trim_memory",
    "usable_cores",
    "workers_that_fit",
]

PROC = Path("/proc")
CGROUP = Path("/sys/fs/cgroup")

_SHARE_FOR_WORKERS = 0.8  # the rest is the parent's, whose policy has to fit too


def usable_cores(proc: Path = PROC, cgroup: Path = CGROUP) -> int:
    """How many cores this process may keep busy: its affinity, and its control groups' CPU quota; at least 1.

    A fractional quota is rounded up: the last worker then shares a core.
    """
    affinity = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    quotas = (_cpu_quota(directory) for directory in _directories("cpu", proc, cgroup))
    return max(1, ceil(min((affinity, *quotas))))


def available_memory(proc: Path = PROC, cgroup: Path = CGROUP) -> int:
    """Bytes that can be allocated without swapping or being killed for it.

    The machine's available memory, or what a control group's limit leaves, whichever is less. File cache that
    the kernel would give back counts as free in both.
    """
    left = (_memory_left(directory) for directory in _directories("memory", proc, cgroup))
    return max(0, int(min((_machine_memory(proc), *left))))


def auto_workers(cores: int, memory: int, worker_gb: float) -> int:
    """How many workers `--workers auto` is: twice the cores, so that they never idle while episodes wait for the
    policy; less where `memory` bytes do not hold as many of `worker_gb`; at least 1."""
    return max(1, min(2 * cores, workers_that_fit(memory, worker_gb)))


def workers_that_fit(memory: int, worker_gb: float) -> int:
    """How many workers of `worker_gb` (1e9 bytes) fit into `memory` bytes beside the parent; it can be 0."""
    return int(memory * _SHARE_FOR_WORKERS / (worker_gb * 1e9))


def peak_memory(pid: int, proc: Path = PROC) -> int:
    """Bytes that process `pid` has held at most, without what it shares now with others (the forkserver, libraries).

    0 where the process is gone.
    """
    peak = _kilobytes(proc / str(pid) / "status").get("VmHWM", 0)
    now = _kilobytes(proc / str(pid) / "smaps_rollup")
    shared = now.get("Shared_Clean", 0) + now.get("Shared_Dirty", 0)
    return max(0, peak - shared) * 1024


def memory_held(pid: int, proc: Path = PROC, *, own: bool = False) -> int:
    """Bytes that process `pid` holds now; 0 where it is gone. 20 us.

    Pages of files, and of memory that it shares with its parent, count unless only its `own` are asked for.
    """
    fields = _read(proc / str(pid) / "statm").split()
    if len(fields) < 3:
        return 0
    pages = int(fields[1]) - (int(fields[2]) if own else 0)
    return pages * os.sysconf("SC_PAGE_SIZE")


def cpu_time(pid: int) -> float:
    """Seconds that all threads of process `pid` have computed; 0 where it is gone, or the system does not tell. 1 us.

    Its own alone: not those of processes that it started.
    """
    try:
        return time.clock_gettime((~pid << 3) | 2)  # Linux: the id of another process's CPU clock
    except (OSError, OverflowError):
        return 0.0


def core_times(pid: int, proc: Path = PROC) -> tuple[float, float] | None:
    """Seconds that process `pid` has computed, in its first thread, and waited for a core that others had. None where
    it is gone, or the system does not tell. 15 us."""
    fields = _read(proc / str(pid) / "schedstat").split()
    return (int(fields[0]) / 1e9, int(fields[1]) / 1e9) if len(fields) > 1 else None


def machine_time(proc: Path = PROC) -> float:
    """Seconds that the machine's cores have computed, for whomever; only the difference of two calls means anything."""
    fields = _read(proc / "stat").partition("\n")[0].split()[1:9]
    user, nice, system, _idle, _io, *interrupts = (*map(int, fields), *[0] * 5)
    return (user + nice + system + sum(interrupts)) / os.sysconf("SC_CLK_TCK")


def process_age(proc: Path = PROC) -> float:
    """Seconds since this process began; 0 where the system does not tell."""
    fields = _read(proc / "self" / "stat").rpartition(")")[2].split()
    if len(fields) < 20:
        return 0.0
    return max(0.0, time.clock_gettime(time.CLOCK_BOOTTIME) - int(fields[19]) / os.sysconf("SC_CLK_TCK"))


def trim_memory() -> None:
    """Give what the C library keeps and nobody uses back to the system."""
    with suppress(AttributeError):  # glibc's alone
        ctypes.CDLL(None).malloc_trim(0)


def oom_kills(proc: Path = PROC, cgroup: Path = CGROUP) -> int | None:
    """How often the kernel has killed a process for want of memory, on this machine or in our control groups.

    Only the difference of two calls means anything. None where the kernel does not say.
    """
    files = [proc / "vmstat"]
    for directory in _directories("memory", proc, cgroup):
        files += [directory / "memory.events", directory / "memory.oom_control"]
    lines = (line.split() for file in files for line in _read(file).splitlines())
    counts = [int(line[1]) for line in lines if len(line) == 2 and line[0] == "oom_kill"]
    return sum(counts) if counts else None


def _kilobytes(path: Path) -> dict[str, int]:
    """The lines `Name:   123 kB`."""
    pairs = (line.partition(":") for line in _read(path).splitlines() if line.endswith(" kB"))
    return {name: int(value.split()[0]) for name, _, value in pairs}


def _machine_memory(proc: Path) -> float:
    for line in _read(proc / "meminfo").splitlines():
        name, _, value = line.partition(":")
        if name == "MemAvailable":
            return int(value.split()[0]) * 1024
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


def _directories(controller: str, proc: Path, cgroup: Path) -> Iterator[Path]:
    """The control groups that hold this process, of one controller, from its own up to the root.

    A limit may stand at any level. In a container the path that `/proc` tells can be the host's: levels that
    do not exist are skipped, and the mounted root is then the container's own group.
    """
    for line in _read(proc / "self" / "cgroup").splitlines():
        _, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        if not controllers:
            roots = [cgroup, cgroup / "unified"]  # version 2, alone or beside version 1
        elif controller in controllers.split(","):
            roots = [cgroup / controller, cgroup / controllers]
        else:
            continue
        names = [name for name in path.split("/") if name not in ("", "..")]
        for root in roots:
            for depth in range(len(names), -1, -1):
                directory = root.joinpath(*names[:depth])
                if directory.is_dir():
                    yield directory


def _cpu_quota(directory: Path) -> float:
    """In cores; infinite where there is none."""
    quota, _, period = _read(directory / "cpu.max").strip().partition(" ")
    if not quota:
        quota, period = (_read(directory / f"cpu.cfs_{name}_us").strip() for name in ("quota", "period"))
    return int(quota) / int(period) if quota.isdigit() and period.isdigit() and int(period) else inf


def _memory_left(directory: Path) -> float:
    """What the group may still use, in bytes; infinite where it has no limit."""
    limits = [
        text
        for name in ("memory.max", "memory.high", "memory.limit_in_bytes")
        if (text := _read(directory / name).strip()).isdigit()
    ]
    if not limits:
        return inf
    used = _read(directory / "memory.current") or _read(directory / "memory.usage_in_bytes") or "0"
    return min(map(int, limits)) - int(used) + _reclaimable(directory)


def _reclaimable(directory: Path) -> int:
    counters = dict(line.split() for line in _read(directory / "memory.stat").splitlines())
    return int(counters.get("total_inactive_file", counters.get("inactive_file", 0)))


def _read(path: Path) -> str:
    try:
        return path.read_text()
    except OSError:
        return ""
