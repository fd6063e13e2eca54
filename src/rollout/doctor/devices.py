"""Rendering and CUDA, each tried in a process of its own."""

from __future__ import annotations

import importlib.util
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Mapping
from pathlib import Path

import msgspec
from msgspec import Struct

from rollout.doctor.findings import Finding
from rollout.graphics import (
    PACKAGES,
    Graphics,
    find_graphics,
    install_command,
    library_fix,
    run_probe,
    sudo,
)
from rollout.rendering import Backend, choose_backend, worker_environment

__all__ = [
    "Cuda",
    "Frame",
    "check_backend",
    "check_cuda",
    "check_devices",
    "check_libraries",
    "check_rendering",
    "judge_cuda",
    "torch_cuda",
    "try_frame",
]

LIMIT_S = 5.0
NO_DEVICE = 100  # CUDA_ERROR_NO_DEVICE
DRIVER_PROC = Path("/proc/driver/nvidia/version")

_FRAME = """
import os
SCENE = "<mujoco><worldbody><light pos='0 0 3'/><geom size='1'/></worldbody></mujoco>"
try:
    import mujoco, numpy  # which loads the back end's library
    context = mujoco.GLContext(64, 64)
    context.make_current()
    from OpenGL import GL
    model, whole = mujoco.MjModel.from_xml_string(SCENE), mujoco.MjrRect(0, 0, 64, 64)
    data, scene, canvas = mujoco.MjData(model), mujoco.MjvScene(model, 10), mujoco.MjrContext(model, 100)
    mujoco.mj_forward(model, data)
    mujoco.mjr_setBuffer(mujoco.mjtFramebuffer.mjFB_OFFSCREEN, canvas)
    mujoco.mjv_updateScene(model, data, mujoco.MjvOption(), None, mujoco.MjvCamera(), 7, scene)
    mujoco.mjr_render(whole, scene, canvas)
    pixels = numpy.zeros((64, 64, 3), numpy.uint8)
    mujoco.mjr_readPixels(pixels, None, whole, canvas)
    assert pixels.any(), "the frame is black"
    print(GL.glGetString(GL.GL_RENDERER).decode(), flush=True)
    os._exit(0)
except Exception as exc:
    print(f"{type(exc).__name__}: {exc}".splitlines()[0], flush=True)
    os._exit(1)  # without the tracebacks of half-made contexts
"""


class Cuda(Struct, frozen=True, kw_only=True):
    """What the driver says: its CUDA version (12080 is 12.8), cuInit's status, the visible GPUs' names."""

    version: int
    error: int = 0
    gpus: tuple[str, ...] = ()


class Frame(Struct, frozen=True):
    """What came of rendering one frame: who drew it, or why it could not be drawn."""

    drawn: bool
    text: str


def check_rendering(environ: Mapping[str, str], versions: Mapping[str, str]) -> list[Finding]:
    """The GL libraries, the back end that `--render auto` chooses, a real frame, and the EGL devices."""
    graphics = find_graphics(environ)
    backend = choose_backend("auto", environ, graphics)
    frame = try_frame(backend, environ) if backend.obstacle is None and "mujoco" in versions else None
    return [
        *check_libraries(graphics, backend),
        *check_backend(backend, environ, graphics, frame),
        *check_unused_gpu(backend, environ, graphics),
        *check_devices(graphics, environ),
    ]


def check_libraries(graphics: Graphics, backend: Backend) -> list[Finding]:
    """Which GL libraries load. One that is not installed is no warning here: it may not be needed.

    Nothing is said where the back end's own obstacle says it all.
    """
    failing = [name for name in PACKAGES if name in graphics.failures]
    obstacle = "" if backend.obstacle is None else backend.obstacle.text
    if failing and all(graphics.complaint(name) in obstacle for name in failing):
        return []
    names = [name for name in PACKAGES if name not in graphics.failures]
    broken = [name for name in failing if graphics.broken(name)]
    names += [f"{graphics.complaint(name)} ({PACKAGES[name]})" for name in failing if name not in broken]
    names += dict.fromkeys(map(graphics.complaint, broken))
    return [
        Finding(
            level="warning" if broken else "ok",
            subject="GL libraries",
            detail=", ".join(names),
            fix=library_fix(broken, graphics) if broken else None,
        )
    ]


def check_backend(
    backend: Backend, environ: Mapping[str, str], graphics: Graphics, frame: Frame | None
) -> list[Finding]:
    """Whether frames can be drawn, and by whom."""
    if backend.obstacle is not None:
        chosen = any(environ.get(name) for name in ("MUJOCO_GL", "PYOPENGL_PLATFORM"))
        return [
            Finding(
                level="error" if chosen else "warning",
                subject="rendering",
                fix=backend.obstacle.fix,
                detail=f"no cameras and no videos: {backend.obstacle.text}",
            )
        ]
    if frame is not None and not frame.drawn:
        elsewhere = backend.name != "osmesa" and "libOSMesa" not in graphics.failures
        everything = install_command([*PACKAGES.values(), "libgl1-mesa-dri"])
        return [
            Finding(
                level="error",
                subject="rendering",
                detail=f"{backend.name}: {frame.text}",
                fix="export MUJOCO_GL=osmesa" if elsewhere else everything,
            )
        ]
    detail = f"{backend.name}, drawn by {frame.text}" if frame is not None else backend.reason
    return [Finding(level="ok", subject="rendering", detail=detail)]


def check_unused_gpu(backend: Backend, environ: Mapping[str, str], graphics: Graphics) -> list[Finding]:
    """Why an NVIDIA GPU that is there is not rendered on, where that is not the user's own choice."""
    if not graphics.nvidia or environ.get("MUJOCO_GL") or environ.get("PYOPENGL_PLATFORM"):
        return []
    obstacle = choose_backend("gpu", environ, graphics).obstacle
    if obstacle is None or obstacle == backend.obstacle:
        return []
    return [Finding(level="warning", subject="GPU rendering", detail=obstacle.text, fix=obstacle.fix)]


def try_frame(backend: Backend, environ: Mapping[str, str]) -> Frame:
    """Draw one frame with MuJoCo as a worker would."""
    env = {**environ, **worker_environment(backend, 0)}
    try:
        done = subprocess.run(
            [sys.executable, "-c", _FRAME],
            env=env,
            capture_output=True,
            text=True,
            timeout=LIMIT_S,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return Frame(False, f"no frame within {LIMIT_S:g} s")
    crash = f"crashed with signal {-done.returncode}" if done.returncode < 0 else "no frame"
    return Frame(done.returncode == 0, done.stdout.strip().rpartition("\n")[2] or crash)


def check_devices(graphics: Graphics, environ: Mapping[str, str]) -> list[Finding]:
    """How many EGL devices there are, of which kind, and whether MUJOCO_EGL_DEVICE_ID is one of them."""
    if "libEGL" in graphics.failures:
        return []
    count = len(graphics.devices)
    chosen = environ.get("MUJOCO_EGL_DEVICE_ID", "")
    if chosen and not (chosen.isdigit() and int(chosen) < count):
        return [
            Finding(
                level="error",
                subject="EGL devices",
                fix="unset MUJOCO_EGL_DEVICE_ID",
                detail=f"MUJOCO_EGL_DEVICE_ID={chosen}, counted from 0, and there are {count}",
            )
        ]
    kinds = Counter(device.kind for device in graphics.devices)
    detail = ", ".join(f"{number} {kind}" for kind, number in kinds.items())
    return [Finding(level="ok", subject="EGL devices", detail=detail or "none")]


def check_cuda(environ: Mapping[str, str], driver: Path = DRIVER_PROC) -> list[Finding]:
    """Whether policies can use an NVIDIA GPU. A process of its own asks the driver; torch is not imported."""
    if not driver.exists() and not list(Path("/dev").glob("nvidia[0-9]*")):
        return [Finding(level="ok", subject="CUDA", detail="no NVIDIA GPU: policies run on the CPU")]
    try:
        cuda = msgspec.json.decode(run_probe("cuda", environ, LIMIT_S), type=Cuda)
    except RuntimeError as exc:
        return [Finding(level="error", subject="CUDA", detail=str(exc), fix="nvidia-smi")]
    return judge_cuda(cuda, torch_cuda(), environ)


def judge_cuda(cuda: Cuda, built_for: str | None, environ: Mapping[str, str]) -> list[Finding]:
    """What the driver says, beside the CUDA version that torch was built for (None: for the CPU alone)."""
    driver = f"{cuda.version // 1000}.{cuda.version % 1000 // 10}"
    if cuda.error == NO_DEVICE and environ.get("CUDA_VISIBLE_DEVICES") is not None:
        text = f"CUDA_VISIBLE_DEVICES={environ['CUDA_VISIBLE_DEVICES']} hides every GPU"
        return [Finding(level="warning", subject="CUDA", detail=text, fix="unset CUDA_VISIBLE_DEVICES")]
    if cuda.error:
        text = f"the driver does not start: cuInit returned {cuda.error}"
        return [Finding(level="error", subject="CUDA", detail=text, fix="nvidia-smi")]
    gpus = ", ".join(f"{number} × {name}" for name, number in Counter(cuda.gpus).items())
    if built_for is None:
        return [
            Finding(
                level="warning",
                subject="CUDA",
                fix="pip install --force-reinstall torch",
                detail=f"{gpus}, but this torch is built for the CPU alone",
            )
        ]
    if int(built_for.partition(".")[0]) > cuda.version // 1000:
        return [
            Finding(
                level="error",
                subject="CUDA",
                fix=f"{sudo()}apt-get install -y nvidia-driver",
                detail=f"{gpus}: the driver knows CUDA {driver}, torch is built for {built_for}",
            )
        ]
    detail = f"{gpus}; the driver knows CUDA {driver}, torch is built for {built_for}"
    return [Finding(level="ok", subject="CUDA", detail=detail)]


def torch_cuda() -> str | None:
    """The CUDA version that torch was built for, read from its source; None where it has none."""
    spec = importlib.util.find_spec("torch")
    if spec is None or spec.origin is None:
        return None
    version = Path(spec.origin).with_name("version.py")
    text = version.read_text() if version.exists() else ""
    found = re.search(r"^cuda\b.*= '([\d.]+)'", text, re.MULTILINE)
    return found[1] if found else None
