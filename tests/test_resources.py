"""Cores and memory, on this machine and within made-up control groups."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from rollout.resources import (
    auto_workers,
    available_memory,
    core_times,
    peak_memory,
    usable_cores,
    workers_that_fit,
)

MB = 2**20


class FakeMachine:
    """A `/proc` and a `/sys/fs/cgroup` in a temporary directory."""

    def __init__(self, root: Path, membership: str, available_mb: int = 8000) -> None:
        self.proc, self.cgroup = root / "proc", root / "cgroup"
        self.write(self.proc / "self" / "cgroup", membership)
        self.write(self.proc / "meminfo", f"MemTotal: 1 kB\nMemAvailable:   {available_mb * 1024} kB\n")
        self.cgroup.mkdir()

    def limit(self, group: str, **files: str) -> None:
        """Set files of a group; `__` in a name stands for a dot."""
        for name, text in files.items():
            self.write(self.cgroup / group / name.replace("__", "."), f"{text}\n")

    @staticmethod
    def write(path: Path, text: str) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)

    @property
    def cores(self) -> int:
        return usable_cores(self.proc, self.cgroup)

    @property
    def memory(self) -> int:
        return available_memory(self.proc, self.cgroup)


AFFINITY = len(os.sched_getaffinity(0))


def test_without_a_quota_all_cores_of_the_affinity_are_usable(tmp_path: Path) -> None:
    machine = FakeMachine(tmp_path, "0::/job\n")
    machine.limit("job", cpu__max="max 100000")
    assert machine.cores == AFFINITY


@pytest.mark.parametrize(("quota", "cores"), [("80000 80000", 1), ("20000 100000", 1), ("100001 100000", 2)])
def test_a_quota_limits_the_cores_and_is_rounded_up(tmp_path: Path, quota: str, cores: int) -> None:
    machine = FakeMachine(tmp_path, "0::/job\n")
    machine.limit("job", cpu__max=quota)
    assert machine.cores == min(cores, AFFINITY)


def test_a_quota_of_a_parent_group_counts(tmp_path: Path) -> None:
    machine = FakeMachine(tmp_path, "0::/slice/job\n")
    machine.limit("slice", cpu__max="100000 100000")
    machine.limit("slice/job", cpu__max="max 100000")
    assert machine.cores == 1


def test_a_quota_of_version_1_counts_and_minus_one_is_none(tmp_path: Path) -> None:
    machine = FakeMachine(tmp_path, "3:cpu,cpuacct:/job\n0::/\n")
    machine.limit("cpu,cpuacct/job", cpu__cfs_quota_us="-1", cpu__cfs_period_us="100000")
    assert machine.cores == AFFINITY
    machine.limit("cpu,cpuacct", cpu__cfs_quota_us="100000", cpu__cfs_period_us="100000")
    assert machine.cores == 1


def test_a_container_that_sees_the_hosts_path_is_limited_by_its_mounted_root(tmp_path: Path) -> None:
    machine = FakeMachine(tmp_path, "4:memory:/docker/0123\n1:cpu:/docker/0123\n")
    machine.limit("cpu", cpu__cfs_quota_us="50000", cpu__cfs_period_us="100000")
    machine.limit("memory", memory__limit_in_bytes=str(900 * MB), memory__usage_in_bytes=str(100 * MB))
    assert (machine.cores, machine.memory) == (1, 800 * MB)


def test_a_path_above_the_mounted_root_stays_inside_it(tmp_path: Path) -> None:
    machine = FakeMachine(tmp_path, "0::/../../job\n")
    machine.limit(".", memory__max=str(500 * MB), memory__current="0")
    assert machine.memory == 500 * MB


def test_without_a_limit_the_machines_available_memory_counts(tmp_path: Path) -> None:
    machine = FakeMachine(tmp_path, "0::/job\n", available_mb=3000)
    machine.limit("job", memory__max="max", memory__current=str(7000 * MB))
    assert machine.memory == 3000 * MB


def test_a_memory_limit_leaves_what_is_unused_or_reclaimable(tmp_path: Path) -> None:
    machine = FakeMachine(tmp_path, "0::/job\n")
    machine.limit(
        "job",
        memory__max=str(1000 * MB),
        memory__current=str(900 * MB),
        memory__stat=f"anon {600 * MB}\ninactive_file {300 * MB}",
    )
    assert machine.memory == 400 * MB


def test_the_high_mark_limits_before_the_maximum_does(tmp_path: Path) -> None:
    machine = FakeMachine(tmp_path, "0::/job\n")
    machine.limit("job", memory__max=str(900 * MB), memory__high=str(700 * MB), memory__current=str(100 * MB))
    assert machine.memory == 600 * MB


def test_version_1_counts_the_reclaimable_memory_of_the_whole_hierarchy(tmp_path: Path) -> None:
    machine = FakeMachine(tmp_path, "4:memory:/job\n")
    machine.limit(
        "memory/job",
        memory__limit_in_bytes=str(1000 * MB),
        memory__usage_in_bytes=str(800 * MB),
        memory__stat=f"inactive_file {10 * MB}\ntotal_inactive_file {200 * MB}",
    )
    assert machine.memory == 400 * MB


def test_a_group_over_its_limit_has_no_memory_rather_than_less_than_none(tmp_path: Path) -> None:
    machine = FakeMachine(tmp_path, "0::/job\n")
    machine.limit("job", memory__max=str(100 * MB), memory__current=str(150 * MB))
    assert machine.memory == 0


def test_a_machine_without_control_groups_is_measured_too(tmp_path: Path) -> None:
    assert usable_cores(tmp_path, tmp_path) == AFFINITY
    assert available_memory(tmp_path, tmp_path) == os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


def test_this_machine_has_cores_and_memory() -> None:
    assert 1 <= usable_cores() <= AFFINITY
    assert 0 < available_memory() <= os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


def test_workers_leave_a_fifth_of_the_memory_to_the_parent() -> None:
    assert workers_that_fit(10_000_000_000, 2.0) == 4
    assert workers_that_fit(2_000_000_000, 2.0) == 0


def test_auto_is_twice_the_cores_or_what_memory_holds_and_never_nothing() -> None:
    assert auto_workers(4, 100 * 10**9, 2.0) == 8
    assert auto_workers(4, 10 * 10**9, 2.0) == 4
    assert auto_workers(4, 10**9, 2.0) == 1


def test_a_peak_is_told_without_what_other_processes_share(tmp_path: Path) -> None:
    FakeMachine.write(
        tmp_path / "7" / "status", "Name:\tpython\nVmPeak:\t 9000 kB\nVmHWM:\t 5000 kB\nThreads:\t1\n"
    )
    assert peak_memory(7, tmp_path) == 5000 * 1024  # a kernel without smaps_rollup
    FakeMachine.write(
        tmp_path / "7" / "smaps_rollup",
        "5650-7ffc ---p 00000000 00:00 0 [rollup]\nRss: 4000 kB\nShared_Clean: 300 kB\nShared_Dirty: 700 kB\n",
    )
    assert peak_memory(7, tmp_path) == 4000 * 1024
    assert peak_memory(8, tmp_path) == 0


def test_a_process_tells_how_long_it_computed_and_was_kept_from_a_core(tmp_path: Path) -> None:
    FakeMachine.write(tmp_path / "7" / "schedstat", "2500000000 1250000000 42\n")
    assert core_times(7, tmp_path) == (2.5, 1.25)
    assert core_times(8, tmp_path) is None


def test_the_peak_of_this_process_is_within_reason() -> None:
    assert 10 * MB < peak_memory(os.getpid()) < 8 * 2**30
