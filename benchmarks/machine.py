"""Where a measurement was made: the machine, the versions, the commit."""

from __future__ import annotations

import os
import platform
import subprocess
from contextlib import suppress
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, Final

from rollout.resources import available_memory, usable_cores

__all__ = ["commit", "machine", "versions"]

PACKAGES: Final = (
    "rollout-engine",
    "gymnasium",
    "stable-baselines3",
    "metaworld",
    "mujoco",
    "hf-libero",
    "robosuite",
    "numpy",
    "torch",
    "msgspec",
    "anyio",
    "uvloop",
)


def machine() -> dict[str, Any]:
    """CPU, cores, memory, system, and how busy it was before anything was measured."""
    return {
        "cpu": _cpu(),
        "cores": usable_cores(),
        "memory_gb": round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 1e9, 1),
        "available_gb": round(available_memory() / 1e9, 1),
        "system": _system(),
        "kernel": platform.release(),
        "load_before": [round(load, 2) for load in os.getloadavg()],
    }


def versions() -> dict[str, str]:
    """Of Python, and of the packages that matter, as far as they are installed."""
    found = {"python": platform.python_version()}
    for package in PACKAGES:
        with suppress(PackageNotFoundError):
            found[package] = version(package)
    return found


def commit(folder: Path) -> str | None:
    """The commit of the checkout in `folder`, marked where files differ from it; None where that is none."""
    if not (folder / ".git").exists():
        return None
    command = ["git", "-C", str(folder), "describe", "--always", "--dirty", "--abbrev=12"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=30)
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.strip() or None


def _cpu() -> str:
    with suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()


def _system() -> str:
    with suppress(OSError):
        return platform.freedesktop_os_release().get("PRETTY_NAME", platform.system())
    return platform.system()
