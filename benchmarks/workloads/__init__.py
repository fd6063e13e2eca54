"""What is asked: one module a workload, with its `WORKLOAD`."""

from __future__ import annotations

from importlib import import_module

from benchmarks.workload import Workload

__all__ = ["NAMES", "load"]

NAMES = (
    "transport",
    "metaworld",
    "scheduling",
    "batching",
    "simulators",
    "end-to-end",
    "start-up",
    "memory",
    "display",
)


def load(name: str) -> Workload:
    """The workload called `name`, one of `NAMES`."""
    workload: Workload = import_module(f"benchmarks.workloads.{name.replace('-', '_')}").WORKLOAD
    return workload
