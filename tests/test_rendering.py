"""Which back end a worker gets: on described machines, on this one, and with drivers made for the test."""

from __future__ import annotations

import importlib.util
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from rollout.envs.gl import VARIABLES
from rollout.errors import UsageError
from rollout.graphics import EglDevice, Graphics, find_graphics, run_probe
from rollout.probe import LIBRARIES
from rollout.rendering import Backend, Obstacle, choose_backend, require_rendering, worker_environment

SOFTWARE = EglDevice(kind="software")
ABSENT = "x.so: cannot open shared object file: No such file or directory"
BARE = Graphics(failures=dict.fromkeys(["libEGL", "libGL", "libOSMesa"], ABSENT))
CPU_ONLY = Graphics(devices=(SOFTWARE,))
# EGL need not count GPUs as CUDA does.
THREE_GPUS = Graphics(
    devices=(*(EglDevice(kind="nvidia", cuda=ordinal) for ordinal in (2, 0, 1)), SOFTWARE),
    nvidia=("GPU-aaaa0000", "GPU-bbbb1111", "GPU-bbcc2222"),
)


def spread(environ: dict[str, str], workers: int = 4) -> list[str]:
    backend = choose_backend("auto", environ, THREE_GPUS)
    assert (backend.name, backend.problem) == ("egl", None)
    return [worker_environment(backend, worker)["MUJOCO_EGL_DEVICE_ID"] for worker in range(workers)]


def test_a_machine_without_a_gpu_gets_osmesa() -> None:
    backend = choose_backend("auto", {}, CPU_ONLY)
    assert worker_environment(backend, 5) == {
        "MUJOCO_GL": "osmesa",
        "PYOPENGL_PLATFORM": "osmesa",
        "LP_NUM_THREADS": "0",
    }
    assert backend.reason == "osmesa: software rendering (no GPU that can render)"


def test_without_osmesa_egl_draws_on_mesas_software_device() -> None:
    graphics = Graphics(failures={"libOSMesa": ABSENT}, devices=(EglDevice(kind="unusable"), SOFTWARE))
    backend = choose_backend("auto", {}, graphics)
    assert worker_environment(backend, 3) == {
        "MUJOCO_GL": "egl",
        "PYOPENGL_PLATFORM": "egl",
        "LP_NUM_THREADS": "0",
        "MUJOCO_EGL_DEVICE_ID": "1",
    }


def test_workers_take_the_gpus_in_turn_in_cudas_order() -> None:
    assert spread({}) == ["1", "2", "0", "1"]
    assert "LP_NUM_THREADS" not in choose_backend("auto", {}, THREE_GPUS).env


@pytest.mark.parametrize(
    ("visible", "devices"),
    [
        ("2", ["0", "0", "0", "0"]),
        ("1,2", ["2", "0", "2", "0"]),
        (" 0 , 1 ", ["1", "2", "1", "2"]),
        ("0,-1,1", ["1", "1", "1", "1"]),
        ("0,7,1", ["1", "1", "1", "1"]),
        ("GPU-bbbb1111,GPU-aaaa", ["2", "1", "2", "1"]),
        ("GPU-bbcc", ["0", "0", "0", "0"]),
    ],
)
def test_only_gpus_that_cuda_would_show_are_used(visible: str, devices: list[str]) -> None:
    assert spread({"CUDA_VISIBLE_DEVICES": visible}) == devices


@pytest.mark.parametrize("visible", ["", "-1", "NoDevFiles", "MIG-1234", "GPU-bb"])
def test_hidden_gpus_are_not_rendered_on(visible: str) -> None:
    environ = {"CUDA_VISIBLE_DEVICES": visible}
    assert choose_backend("auto", environ, THREE_GPUS).name == "osmesa"
    problem = choose_backend("gpu", environ, THREE_GPUS).problem
    assert problem is not None
    assert problem.endswith("unset CUDA_VISIBLE_DEVICES")


@pytest.mark.parametrize("visible", ["GPU-bbbb1111", "-1", "3"])
@pytest.mark.parametrize("render", ["auto", "cpu"])
def test_robosuite_finds_its_device_in_cuda_visible_devices(visible: str, render: str) -> None:
    environ = {"CUDA_VISIBLE_DEVICES": visible, "MUJOCO_GL": "egl"}
    env = worker_environment(choose_backend(render, environ, THREE_GPUS), 0)  # type: ignore[arg-type]
    seen = env.get("CUDA_VISIBLE_DEVICES", visible)
    assert env["MUJOCO_EGL_DEVICE_ID"] in seen
    assert seen == visible or seen.startswith(f"{visible},-1,")  # CUDA stops reading at the -1


def test_a_gpu_that_mesa_drives_is_used() -> None:
    backend = choose_backend("gpu", {}, Graphics(devices=(EglDevice(kind="drm"), SOFTWARE)))
    assert (backend.name, backend.devices, backend.reason) == ("egl", ("0",), "egl: 1 GPU")


def test_what_the_user_set_is_left_alone() -> None:
    environ = {
        "MUJOCO_GL": "egl",
        "PYOPENGL_PLATFORM": "egl",
        "LP_NUM_THREADS": "4",
        "MUJOCO_EGL_DEVICE_ID": "0",
    }
    for graphics in (CPU_ONLY, THREE_GPUS):
        assert worker_environment(choose_backend("auto", environ, graphics), 1) == {}


def test_mujoco_gl_decides_even_where_a_gpu_is_there() -> None:
    backend = choose_backend("auto", {"MUJOCO_GL": "osmesa"}, THREE_GPUS)
    assert (backend.name, backend.devices) == ("osmesa", ())


def test_capitals_are_written_as_robosuite_reads_them() -> None:
    assert choose_backend("auto", {"MUJOCO_GL": "OSMesa"}, CPU_ONLY).env["MUJOCO_GL"] == "osmesa"


def test_pyopengl_platform_alone_decides_too() -> None:
    assert choose_backend("auto", {"PYOPENGL_PLATFORM": "egl"}, CPU_ONLY).name == "egl"


def test_cpu_leaves_a_gpu_alone() -> None:
    assert choose_backend("cpu", {}, THREE_GPUS).name == "osmesa"
    without = Graphics(failures={"libOSMesa": ABSENT}, devices=THREE_GPUS.devices, nvidia=THREE_GPUS.nvidia)
    assert choose_backend("cpu", {}, without).devices == ("3",)


def test_a_display_is_used_where_the_user_asks_for_it() -> None:
    backend = choose_backend("auto", {"MUJOCO_GL": "glfw", "DISPLAY": ":0"}, CPU_ONLY)
    assert (backend.name, worker_environment(backend, 0), backend.problem) == ("glfw", {}, None)


@pytest.mark.parametrize(
    ("render", "environ", "graphics", "words"),
    [
        (
            "auto",
            {},
            BARE,
            ["no libEGL, no libGL, no libOSMesa", "apt-get install -y libegl1 libgl1 libosmesa6"],
        ),
        ("cpu", {}, BARE, ["apt-get install -y libegl1 libgl1 libosmesa6"]),
        ("auto", {"MUJOCO_GL": "osmesa"}, BARE, ["no libOSMesa;", "apt-get install -y libosmesa6"]),
        ("auto", {"MUJOCO_GL": "egl"}, BARE, ["no libEGL, no libGL;", "apt-get install -y libegl1 libgl1"]),
        ("gpu", {}, CPU_ONLY, ["no GPU that can render", "--render cpu"]),
        (
            "gpu",
            {"MUJOCO_GL": "osmesa"},
            THREE_GPUS,
            ["--render gpu and MUJOCO_GL=osmesa contradict", "unset MUJOCO_GL"],
        ),
        (
            "cpu",
            {"MUJOCO_GL": "glfw", "DISPLAY": ":0"},
            CPU_ONLY,
            ["--render cpu contradicts MUJOCO_GL=glfw"],
        ),
        ("auto", {"MUJOCO_GL": "glfw"}, CPU_ONLY, ["needs a display", "unset MUJOCO_GL"]),
        ("auto", {"MUJOCO_GL": "off"}, CPU_ONLY, ["switches rendering off", "unset MUJOCO_GL"]),
        ("auto", {"MUJOCO_GL": "elg"}, CPU_ONLY, ["MUJOCO_GL=elg is none of egl, osmesa, glfw"]),
        ("auto", {"MUJOCO_GL": "egl", "PYOPENGL_PLATFORM": "osmesa"}, CPU_ONLY, ["contradict each other"]),
        (
            "auto",
            {"PYOPENGL_PLATFORM": "glx"},
            CPU_ONLY,
            ["neither egl nor osmesa", "unset PYOPENGL_PLATFORM"],
        ),
        ("cpu", {"MUJOCO_GL": "egl"}, Graphics(), ["no software device", "libegl-mesa0"]),
        (
            "gpu",
            {},
            Graphics(nvidia=("GPU-a",), container=True, failures={"libEGL_nvidia": ABSENT}),
            ["libEGL_nvidia", "NVIDIA_DRIVER_CAPABILITIES=all"],
        ),
        (
            "gpu",
            {},
            Graphics(nvidia=("GPU-a",), nvidia_driver="570", failures={"libEGL_nvidia": ABSENT}),
            ["apt-get install -y libnvidia-gl-570"],
        ),
        ("gpu", {}, Graphics(nvidia=("GPU-a",)), ["not told", "10_nvidia.json"]),
        ("gpu", {}, Graphics(nvidia=("GPU-a",), nvidia_registered=True), ["does not list", "nvidia-smi"]),
    ],
)
def test_a_back_end_that_cannot_render_says_why_and_what_to_do(
    render: str,
    environ: dict[str, str],
    graphics: Graphics,
    words: list[str],
) -> None:
    backend = choose_backend(render, environ, graphics)  # type: ignore[arg-type]
    with pytest.raises(UsageError) as caught:
        require_rendering(backend)
    assert "\n" not in str(caught.value)
    for word in words:
        assert word in str(caught.value)


def test_a_back_end_that_renders_passes() -> None:
    backend = choose_backend("auto", {}, CPU_ONLY)
    require_rendering(backend)
    assert backend.problem is None


def test_a_problem_is_the_obstacle_and_its_fix_in_one_line() -> None:
    backend = Backend(name="none", reason="none: x", obstacle=Obstacle("no x", "get x"))
    assert backend.problem == "no x; fix: get x"


def test_choosing_loads_no_gl_and_no_simulator_into_this_process() -> None:
    code = (
        "import sys; from rollout.rendering import choose_backend; choose_backend('auto'); "
        "maps = open('/proc/self/maps').read(); "
        "print([name for name in ('libEGL', 'libGL', 'libOSMesa', 'libcuda') if name in maps], "
        "[name for name in ('mujoco', 'OpenGL', 'torch', 'gymnasium') if name in sys.modules])"
    )
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout == "[] []\n"


def test_a_library_that_is_there_but_broken_is_installed_anew(tmp_path: Path) -> None:
    for name in ("libOSMesa.so.8", "libOSMesa.so.6"):
        (tmp_path / name).touch()
    graphics = find_graphics({**os.environ, "LD_LIBRARY_PATH": str(tmp_path)})
    assert "file too short" in graphics.failures["libOSMesa"]
    problem = choose_backend("auto", {"MUJOCO_GL": "osmesa"}, graphics).problem
    assert problem is not None
    assert "libOSMesa.so.8: file too short" in problem
    assert "--reinstall libosmesa6" in problem


def test_the_files_of_the_nvidia_driver_are_read(tmp_path: Path) -> None:
    for bus, uuid, minor in (
        ("0000:65:00.0", "GPU-second", 0),
        ("0000:17:00.0", "GPU-first", 1),
        ("0000:ca:00.0", "GPU-not-in-this-container", 2),
    ):
        file = tmp_path / "proc/driver/nvidia/gpus" / bus / "information"
        file.parent.mkdir(parents=True)
        file.write_text(f"Model: \t\t NVIDIA H200\nGPU UUID: \t {uuid}\nDevice Minor: \t {minor}\n")
    for minor in (0, 1):
        (tmp_path / "dev").mkdir(exist_ok=True)
        (tmp_path / f"dev/nvidia{minor}").touch()
    (tmp_path / "proc/driver/nvidia/version").write_text(
        "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  570.86.15  Release Build\nGCC 12.2\n"
    )
    vendors = tmp_path / "usr/share/glvnd/egl_vendor.d"
    vendors.mkdir(parents=True)
    (vendors / "10_nvidia.json").write_text('{"ICD": {"library_path": "libEGL_nvidia.so.0"}}')
    (tmp_path / ".dockerenv").touch()
    graphics = find_graphics(os.environ, tmp_path)
    assert graphics.nvidia == ("GPU-first", "GPU-second")
    assert (graphics.nvidia_driver, graphics.nvidia_registered, graphics.container) == ("570", True, True)


FAKE_EGL = r"""
#include <string.h>
static long ids[4] = {0, 1, 2, 3};
static unsigned query(int most, void **devices, int *count) {
    for (int i = 0; i < 4 && i < most; i++) devices[i] = &ids[i];
    *count = 4; return 1;
}
static const char *text(void *device, int name) {
    if (name == 0x3377) return "/dev/dri/there-is-no-such-node";
    const char *all[] = {"EGL_NV_device_cuda EGL_EXT_device_drm", "EGL_NV_device_cuda",
                         "EGL_EXT_device_drm EGL_EXT_device_drm_render_node", "EGL_MESA_device_software"};
    return name == 0x3055 ? all[*(long *)device] : 0;
}
static unsigned attribute(void *device, int name, long *value) {
    *value = 1 - *(long *)device; return name == 0x323A;
}
void *eglGetProcAddress(const char *name) {
    if (!strcmp(name, "eglQueryDevicesEXT")) return query;
    if (!strcmp(name, "eglQueryDeviceStringEXT")) return text;
    if (!strcmp(name, "eglQueryDeviceAttribEXT")) return attribute;
    return 0;
}
"""
FAKE_CUDA = r"""
#include <string.h>
int cuDriverGetVersion(int *version) { *version = 12080; return 0; }
int cuInit(unsigned flags) { return 0; }
int cuDeviceGetCount(int *count) { *count = 2; return 0; }
int cuDeviceGet(int *device, int ordinal) { *device = ordinal; return 0; }
int cuDeviceGetName(char *name, int size, int device) { strncpy(name, "NVIDIA H200", size); return 0; }
"""
CRASHING = "#include <stdlib.h>\n__attribute__((constructor)) static void start(void) { abort(); }"
HANGING = "#include <unistd.h>\n__attribute__((constructor)) static void start(void) { for (;;) pause(); }"


def compile_driver(directory: Path, name: str, source: str) -> dict[str, str]:
    """Build a shared library; the environment with which the loader finds it first."""
    compiler = shutil.which("cc") or shutil.which("gcc")
    if compiler is None:
        pytest.skip("there is no C compiler")
    subprocess.run(
        [compiler, "-shared", "-fPIC", "-w", "-x", "c", "-", "-o", str(directory / name)],
        input=source,
        text=True,
        timeout=60,
        check=True,
    )
    return {**os.environ, "LD_LIBRARY_PATH": str(directory)}


def test_egl_devices_are_told_apart_and_carry_their_cuda_ordinal(tmp_path: Path) -> None:
    environ = compile_driver(tmp_path, "libEGL.so.1", FAKE_EGL)
    assert find_graphics(environ).devices == (
        EglDevice(kind="nvidia", cuda=1),
        EglDevice(kind="nvidia", cuda=0),
        EglDevice(kind="unusable"),
        SOFTWARE,
    )


def test_the_cuda_driver_tells_its_version_and_gpus(tmp_path: Path) -> None:
    environ = compile_driver(tmp_path, "libcuda.so.1", FAKE_CUDA)
    told = json.loads(run_probe("cuda", environ, 30))
    assert told == {"version": 12080, "error": 0, "gpus": ["NVIDIA H200", "NVIDIA H200"]}


def test_a_driver_that_crashes_is_a_problem_in_one_line(tmp_path: Path) -> None:
    environ = compile_driver(tmp_path, "libEGL.so.1", CRASHING)
    backend = choose_backend("auto", environ)
    assert backend.name == "none"
    assert backend.problem is not None
    assert backend.problem.startswith("the driver's library crashed with signal 6; fix:")


def test_a_driver_that_hangs_is_given_up_after_the_limit(tmp_path: Path) -> None:
    environ = compile_driver(tmp_path, "libcuda.so.1", HANGING)
    with pytest.raises(RuntimeError, match=r"did not answer in 0\.5 s"):
        run_probe("cuda", environ, 0.5)


@pytest.mark.gl
@pytest.mark.skipif(importlib.util.find_spec("robosuite") is None, reason="needs the `libero` extra")
def test_robosuite_renders_on_mesa_whatever_cuda_visible_devices_says() -> None:
    environ = {**os.environ, "MUJOCO_GL": "egl", "CUDA_VISIBLE_DEVICES": "GPU-abcd"}
    env = worker_environment(choose_backend("cpu", environ), 0)
    code = (
        "import os, robosuite.utils.binding_utils as binding; "
        "context = binding.GLContext(64, 64, -1); context.make_current(); print('current', flush=True); "
        "os._exit(0)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        env=environ | env,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.stdout.endswith("current\n"), done.stderr


@pytest.mark.libero
@pytest.mark.parametrize("display", ["plain", "json"])
def test_a_run_that_cannot_render_ends_in_one_line_with_the_packages_before_a_worker_starts(
    tmp_path: Path, display: str
) -> None:
    for candidates in LIBRARIES.values():
        for library in candidates:
            (tmp_path / library).touch()  # empty: it is found, and does not load
    environ = {name: value for name, value in os.environ.items() if name not in VARIABLES}
    command = "from rollout.cli import main; main()"
    arguments = [
        "run",
        "libero:object",
        "--policy",
        "zero",
        "--display",
        display,
        "--out",
        str(tmp_path / "out"),
    ]
    done = subprocess.run(
        [sys.executable, "-c", command, *arguments],
        env=environ | {"LD_LIBRARY_PATH": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (2, "", 1)
    assert done.stderr.startswith("rollout: cannot render: ")
    for package in ("libegl1", "libgl1", "libosmesa6"):
        assert package in done.stderr.partition("; fix: ")[2]
    assert not (tmp_path / "out").exists()
