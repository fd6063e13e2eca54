"""`rollout doctor`: what this machine lacks for evaluations, and for each thing the command that mends it."""

from __future__ import annotations

import os
import resource
import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from rollout.doctor import devices, machine, packages
from rollout.doctor.findings import Finding, print_findings
from rollout.resources import available_memory, usable_cores

__all__ = ["Finding", "diagnose", "print_findings"]


def diagnose() -> Sequence[Finding]:
    """Look at this machine, in about a second.

    Imports no simulator and loads no GL or CUDA into this process. Nothing is written.
    """
    environ, versions, cores = os.environ, packages.installed_versions(), usable_cores()
    with ThreadPoolExecutor() as pool:  # these wait for processes of their own
        rendering = pool.submit(devices.check_rendering, environ, versions)
        cuda = pool.submit(devices.check_cuda, environ)
        video = pool.submit(packages.check_video, versions)
        adapters, unloadable = packages.load_families()
        return [
            *packages.check_core(versions),
            *unloadable,
            *packages.check_simulators(versions),
            *packages.check_known_bad(versions),
            *packages.check_libero_files(environ, versions),
            *rendering.result(),
            *cuda.result(),
            *video.result(),
            *machine.check_cores(cores, os.cpu_count() or cores),
            *machine.check_memory(available_memory(), packages.worker_sizes(adapters, versions)),
            *machine.check_shared_memory(Path("/dev/shm")),
            *machine.check_descriptors(*resource.getrlimit(resource.RLIMIT_NOFILE), cores),
            *machine.check_threads(environ, cores),
            *machine.check_terminal(sys.stdout),
        ]
