"""What one worker of a simulator holds: the figure that adapters ship, or a scene built here and measured."""

from __future__ import annotations

from collections.abc import Mapping

import anyio
import numpy as np
from msgspec import Struct

from rollout.doctor.findings import Finding
from rollout.errors import RolloutError
from rollout.rendering import Backend, worker_environment
from rollout.resources import auto_workers, peak_memory
from rollout.sim.limits import TimeLimits
from rollout.sim.processes import Forkserver
from rollout.sim.protocol import Reset
from rollout.sim.worker import WorkerProcess
from rollout.spaces import Box
from rollout.types import EpisodeSpec, ObservationRequest
from rollout.values import pack_array

__all__ = ["Measurement", "check_workers", "measure_workers"]

GB = 1e9
LIMIT_S = 180.0
# The suite and the task that are measured: of LIBERO's 130, one with the largest scene (living room 5).
SCENES: Mapping[str, tuple[str, int]] = {"libero": ("10", 4), "metaworld": ("mt10", 0)}


class Measurement(Struct, frozen=True, kw_only=True):
    """What a worker held at most while it built the scene, started an episode and rendered: 1e9 bytes, or why none."""

    scene: str
    worker_gb: float | None = None
    problem: str = ""
    fix: str = ""


def measure_workers(backend: Backend, families: Mapping[str, object]) -> dict[str, Measurement]:
    """Build the largest scene of each of `families` in a worker, as a run would: 5 to 15 s for LIBERO."""
    return {family: _measure(backend, family) for family in SCENES if family in families}


def _scene(family: str) -> str:
    name, task_id = SCENES[family]
    return f"{family}:{name} task {task_id}"


def _measure(backend: Backend, family: str) -> Measurement:
    if backend.obstacle is not None:
        return _unknown(family, backend.obstacle.text, backend.obstacle.fix)
    try:
        return Measurement(scene=_scene(family), worker_gb=anyio.run(_hold, backend, family) / GB)
    except RolloutError as exc:
        return _unknown(family, str(exc))
    except TimeoutError:
        return _unknown(family, f"not built within {LIMIT_S:g} s")


def _unknown(family: str, problem: str, fix: str = "") -> Measurement:
    name, task_id = SCENES[family]
    try_it = f"rollout run {family}:{name} --tasks {task_id} --episodes 1 --policy zero --workers 0"
    return Measurement(scene=_scene(family), problem=problem, fix=fix or try_it)


async def _hold(backend: Backend, family: str) -> int:
    """Bytes."""
    with anyio.fail_after(LIMIT_S):
        async with Forkserver(families=[family]) as forkserver:
            worker = WorkerProcess(0, forkserver, TimeLimits(), worker_environment(backend, 0))
            try:
                await _work(worker, family)
                assert worker.pid is not None  # it has just answered
                return peak_memory(worker.pid)
            finally:
                await worker.aclose()


async def _work(worker: WorkerProcess, family: str) -> None:
    """Two steps with every picture."""
    name, task_id = SCENES[family]
    await worker.start(family, {})
    suite = await worker.describe(name)
    task = suite.task(task_id)
    spec = EpisodeSpec(
        suite=suite.suite,
        task=task.task,
        task_id=task_id,
        episode=0,
        seed=0,
        init_state=0 if task.n_init_states else None,
        horizon=3,
    )
    await worker.build(suite, task_id)
    await worker.reset(Reset(spec, ObservationRequest(), None))
    assert worker.info is not None  # since it was built
    space = worker.info.action_space
    assert isinstance(space, Box)
    await worker.run(pack_array(np.zeros((2, *space.shape), np.float32)))


def check_workers(
    cores: int, available: int, sizes: Mapping[str, float], measured: Mapping[str, Measurement]
) -> list[Finding]:
    """How much memory a worker of each installed simulator takes, and how many `--workers auto` starts here.

    `available` is in bytes, `sizes` are the shipped figures in GB (1e9 bytes).
    """
    return [
        _shipped(family, auto_workers(cores, available, size), size)
        if family not in measured
        else _measured(family, auto_workers(cores, available, size), size, measured[family], cores, available)
        for family, size in sizes.items()
    ]


def _shipped(family: str, auto: int, size: float) -> Finding:
    measurable = "; rollout doctor --measure measures it here" if family in SCENES else ""
    detail = f"{family}: up to {size:.1f} GB each, as shipped{measurable}; --workers auto is {auto}"
    return Finding(level="ok", subject="workers", detail=detail)


def _measured(family: str, auto: int, size: float, found: Measurement, cores: int, available: int) -> Finding:
    if found.worker_gb is None:
        return Finding(
            level="error",
            subject="workers",
            detail=f"{family}: {found.scene} cannot be measured: {found.problem}",
            fix=found.fix,
        )
    detail = f"{family}: {found.worker_gb:.1f} GB each, measured with {found.scene}"
    if found.worker_gb > 1.1 * size:
        fits = auto_workers(cores, available, found.worker_gb)
        return Finding(
            level="warning",
            subject="workers",
            detail=f"{detail}; --workers auto reckons with {size:.1f} GB and is {auto}",
            fix=f"rollout run … --workers {fits}",
        )
    return Finding(level="ok", subject="workers", detail=f"{detail}; --workers auto is {auto}")
