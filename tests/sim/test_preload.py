"""Simulators imported once for all workers: sooner, with the same pictures, and never in the way of anything."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import anyio
import numpy as np
import pytest

from rollout.envs.gl import VARIABLES, rendering_off
from rollout.errors import SimulatorError, UsageError, WorkerDied
from rollout.rendering import choose_backend, worker_environment
from rollout.sim.limits import TimeLimits
from rollout.sim.processes import Forkserver
from rollout.sim.protocol import Reset
from rollout.sim.worker import WorkerProcess
from rollout.types import EpisodeSpec, ObservationRequest
from rollout.values import pack_array

GL = ("libEGL", "libOSMesa", "libcuda.so")
LIMITS = TimeLimits(start=60.0, reset=120.0)


@asynccontextmanager
async def workers(families: Sequence[str], environs: Sequence[dict[str, str]]) -> AsyncIterator[list[Any]]:
    """The forkserver, and a worker (not started) for each of `environs`."""
    with anyio.fail_after(150):
        async with Forkserver(families=families) as forkserver:
            made = [WorkerProcess(i, forkserver, LIMITS, environ) for i, environ in enumerate(environs)]
            try:
                yield [forkserver, *made]
            finally:
                async with anyio.create_task_group() as closing:
                    for worker in made:
                        closing.start_soon(worker.aclose)


def mapped(pid: int, names: Sequence[str] = GL) -> set[str]:
    maps = Path(f"/proc/{pid}/maps").read_text()
    return {name for name in names if name in maps}


def cpu_s(pid: int) -> float:
    """What a process has used, which does not depend on how busy the machine is."""
    user, system = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[11:13]
    return (int(user) + int(system)) / os.sysconf("SC_CLK_TCK")


def backend(mujoco_gl: str) -> dict[str, str]:
    """The variables of a worker that renders with `mujoco_gl` in software."""
    clean = {name: value for name, value in os.environ.items() if name not in VARIABLES}
    return {
        "MUJOCO_GL": mujoco_gl,
        **worker_environment(choose_backend("cpu", {**clean, "MUJOCO_GL": mujoco_gl}), 0),
    }


async def pictures(worker: Any, family: str, suite_name: str) -> tuple[str, set[str]]:
    """A hash over every number and picture of a short episode, and the GL libraries that the worker then has."""
    await worker.start(family, {"height": "64", "width": "64"})
    suite = await worker.describe(suite_name)
    task = suite.tasks[0]
    spec = EpisodeSpec(
        suite=suite.suite,
        task=task.task,
        task_id=0,
        episode=0,
        seed=1000,
        init_state=0 if task.n_init_states else None,
        horizon=10,
    )
    assert not mapped(worker.pid)  # none before the simulator is built
    await worker.build(suite, 0)
    began = await worker.reset(Reset(spec, ObservationRequest(), None))
    size = worker.info.action_space.shape
    done = await worker.run(pack_array(np.full((2, *size), 0.3, np.float32)))
    seen = [began.observation, *done.observations]
    assert sum(key.startswith("observation.images") for key in seen[-1]) >= 1
    digest = hashlib.sha1(done.rewards)
    for observation in seen:
        for key in sorted(observation):
            digest.update(getattr(observation[key], "data", b""))
    return digest.hexdigest(), mapped(worker.pid)


SIMULATORS = [
    pytest.param("libero", "object", marks=pytest.mark.libero),
    pytest.param("metaworld", "reach-v3", marks=pytest.mark.metaworld),
]


@pytest.mark.gl
@pytest.mark.parametrize(("family", "suite"), SIMULATORS)
def test_each_worker_has_its_own_back_end_and_the_pictures_of_one_that_imported_for_itself(
    family: str, suite: str
) -> None:
    environs = [backend("osmesa"), backend("egl")]

    async def episodes(families: Sequence[str]) -> list[tuple[str, set[str]]]:
        results: list[Any] = [None, None]
        async with workers(families, environs) as (_, *made), anyio.create_task_group() as running:

            async def play(index: int) -> None:
                results[index] = await pictures(made[index], family, suite)

            for index in range(2):
                running.start_soon(play, index)
        return results

    alone = anyio.run(episodes, [])
    preloaded = anyio.run(episodes, ["metaworld", "libero"])
    assert [libraries for _, libraries in preloaded] == [{"libOSMesa"}, {"libEGL"}]
    assert preloaded == alone


@pytest.mark.gl
@pytest.mark.metaworld
def test_workers_of_one_forkserver_render_on_devices_of_their_own() -> None:
    async def main() -> None:
        missing = backend("egl") | {"MUJOCO_EGL_DEVICE_ID": "99"}
        async with workers(["metaworld"], [backend("egl"), missing]) as (_, here, elsewhere):
            await pictures(here, "metaworld", "reach-v3")
            with pytest.raises(SimulatorError, match="MUJOCO_EGL_DEVICE_ID"):
                await pictures(elsewhere, "metaworld", "reach-v3")

    anyio.run(main)


@pytest.mark.libero
@pytest.mark.metaworld
def test_preloading_makes_no_gl_and_no_cuda_context_and_starts_no_thread() -> None:
    async def main() -> None:
        async with workers(["libero", "metaworld"], [{}]) as (forkserver, worker):
            await worker.start("libero", {})
            for pid in (forkserver.pid, worker.pid):
                assert len(os.listdir(f"/proc/{pid}/task")) == 1
                assert not mapped(pid)
                assert mapped(pid, ["libmujoco", "libtorch", "llvmlite"]) == {
                    "libmujoco",
                    "libtorch",
                    "llvmlite",
                }

    anyio.run(main)


@pytest.mark.libero
def test_eight_libero_workers_are_ready_after_half_a_second_of_work_together() -> None:
    async def main() -> float:
        async with workers(["libero"], [{}] * 8) as (_, *made):
            async with anyio.create_task_group() as starting:
                for worker in made:
                    starting.start_soon(worker.start, "libero", {})
            assert all(mapped(worker.pid, ["libmujoco"]) for worker in made)
            return sum(cpu_s(worker.pid) for worker in made)

    assert anyio.run(main) < 0.5  # 0.1 s; an import alone takes 2 s


ADAPTER = """
import os, signal, sys, time
from rollout.errors import UsageError

class Adapter:
    family, names, aliases, requires, options = "{family}", (), {{}}, (), {{}}

    {preload}

    @classmethod
    def describe(cls, name, options):
        raise UsageError("described " + name)
"""


@pytest.fixture
def third_party(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Install an adapter whose class body has `preload` in it; returns its family."""

    def install(family: str, preload: str) -> str:
        info = tmp_path / f"{family}-1.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {family}\nVersion: 1\n")
        (info / "entry_points.txt").write_text(f"[rollout.envs]\n{family} = {family}_adapter:Adapter\n")
        (tmp_path / f"{family}_adapter.py").write_text(ADAPTER.format(family=family, preload=preload))
        return family

    monkeypatch.syspath_prepend(str(tmp_path))
    return install


def preloading(body: str) -> str:
    return f"preload = classmethod(lambda cls: {body})"


@pytest.mark.parametrize(
    "preload",
    [
        "pass  # an adapter that has none",
        preloading("1 / 0"),
        preloading("__import__('no_such_simulator')"),
        preloading("sys.exit('please install me')"),
        preloading("print('a banner ' * 10_000)"),
    ],
)
def test_a_simulator_that_cannot_be_preloaded_is_left_to_its_workers(third_party: Any, preload: str) -> None:
    odd = third_party("odd", preload)

    async def main() -> None:
        async with workers([odd, "gym", "not-installed"], [{}, {}]) as (_, gym, worker):
            await gym.start("gym", {})
            assert (await gym.describe("CartPole-v1")).tasks
            await worker.start(odd, {})
            with pytest.raises(UsageError, match="described x"):
                await worker.describe("x")

    anyio.run(main)


def test_an_adapter_that_cannot_be_imported_is_named_by_its_worker(third_party: Any) -> None:
    broken = third_party("broken", "import no_such_simulator")

    async def main() -> None:
        async with workers([broken], [{}]) as (_, worker):
            with pytest.raises((UsageError, SimulatorError), match="no_such_simulator"):
                await worker.start(broken, {})

    anyio.run(main)


def test_an_import_that_kills_the_forkserver_is_told_to_every_worker_at_once(third_party: Any) -> None:
    deadly = third_party("deadly", preloading("os.kill(os.getpid(), signal.SIGSEGV)"))

    async def main() -> None:
        async with workers([deadly], [{}]) as (forkserver, early):
            with pytest.raises(WorkerDied, match="SIGSEGV"):
                await early.start(deadly, {})
            late = WorkerProcess(1, forkserver, LIMITS, {})
            with pytest.raises(WorkerDied, match="SIGSEGV"), anyio.fail_after(10):
                await late.start(deadly, {})
            await late.aclose()

    anyio.run(main)


def test_leaving_does_not_wait_for_an_import(third_party: Any) -> None:
    slow = third_party("slow", preloading("time.sleep(3600)"))

    async def main() -> float:
        async with workers([slow], [{}]) as (_, worker):
            with anyio.move_on_after(0.5):  # a Ctrl-C, say
                await worker.start(slow, {})
            began = time.perf_counter()
        return time.perf_counter() - began

    assert anyio.run(main) < 4.0  # after 5 s it would be killed anyway


def test_what_was_set_is_set_again_afterwards(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MUJOCO_GL", "egl")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "2,3")
    monkeypatch.delenv("PYOPENGL_PLATFORM", raising=False)
    before = dict(os.environ)
    with suppress(ImportError), rendering_off():
        os.environ["PYOPENGL_PLATFORM"] = "egl"  # as imports do
        assert os.environ["MUJOCO_GL"] == "off"
        assert "CUDA_VISIBLE_DEVICES" not in os.environ
        with rendering_off("glx"):
            assert os.environ["MUJOCO_GL"] == "glx"
        assert os.environ["MUJOCO_GL"] == "off"
        raise ImportError
    assert dict(os.environ) == before


CHOICES = """
import os, sys
from rollout.envs.gl import NO_WINDOW, choose_again, rendering_off
with rendering_off(NO_WINDOW):
    import mujoco, mujoco.renderer
    import robosuite.utils.binding_utils as binding
kept = binding.MjRenderContext
assert "OpenGL" not in sys.modules
os.environ["MUJOCO_GL"] = sys.argv[1]
choose_again()
assert binding.MjRenderContext is kept
assert kept.__init__.__globals__["GLContext"] is binding.GLContext
names = [mujoco.GLContext, mujoco.gl_context.GLContext, mujoco.renderer.gl_context.GLContext, binding.GLContext]
print(*[kind.__module__ for kind in names])
os.environ["MUJOCO_GL"] = "osmesa" if sys.argv[1] == "egl" else "egl"
choose_again()  # too late: PyOpenGL stays what it is
assert mujoco.GLContext is names[0]
"""


@pytest.mark.gl
@pytest.mark.libero
@pytest.mark.parametrize("mujoco_gl", ["egl", "osmesa"])
def test_every_module_chooses_by_the_variables_of_the_worker(mujoco_gl: str) -> None:
    env = {name: value for name, value in os.environ.items() if name not in VARIABLES}
    done = subprocess.run(
        [sys.executable, "-c", CHOICES, mujoco_gl],
        env=env,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    robosuite = f"robosuite.renderers.context.{mujoco_gl}_context"
    assert done.stdout.split()[-4:] == [*[f"mujoco.{mujoco_gl}"] * 3, robosuite], done.stderr
