"""`rollout doctor`: what this machine lacks for evaluations, and for each thing the command that mends it."""

from __future__ import annotations

import os
import resource
import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from rollout.doctor import devices, machine, memory, packages, policies
from rollout.doctor.findings import Finding, print_findings
from rollout.rendering import choose_backend
from rollout.resources import available_memory, usable_cores

__all__ = ["Finding", "diagnose", "print_findings"]


def diagnose(*, measure: bool = False) -> Sequence[Finding]:
    """Look at this machine, in about a second; with `measure`, build a scene of each simulator too (10 to 20 s).

    Imports no simulator and loads no GL or CUDA into this process. Nothing is written.
    """
    environ, versions, cores = os.environ, packages.installed_versions(), usable_cores()
    available = available_memory()
    with ThreadPoolExecutor() as pool:  # these wait for processes of their own
        rendering = pool.submit(devices.check_rendering, environ, versions)
        cuda = pool.submit(devices.check_cuda, environ)
        video = pool.submit(packages.check_video, versions)
        adapters, unloadable = packages.load_families()
        sizes = packages.worker_sizes(adapters, versions)
        measured = memory.measure_workers(choose_backend("auto", environ), sizes) if measure else {}
        return [
            *packages.check_core(versions),
            *unloadable,
            *packages.check_simulators(versions),
            *packages.check_known_bad(versions),
            *packages.check_libero_files(environ, versions),
            *policies.check_policies(packages.installed_versions(policies.NAMES)),
            *rendering.result(),
            *cuda.result(),
            *video.result(),
            *machine.check_cores(cores, os.cpu_count() or cores),
            *machine.check_memory(available, sizes),
            *memory.check_workers(cores, available, sizes, measured),
            *machine.check_shared_memory(Path("/dev/shm")),
            *machine.check_descriptors(*resource.getrlimit(resource.RLIMIT_NOFILE), cores),
            *machine.check_threads(environ, cores),
            *machine.check_terminal(sys.stdout),
        ]
