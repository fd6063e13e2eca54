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
from rollout.graphics import PACKAGES, Graphics, find_graphics, install_command, run_probe
from rollout.rendering import Backend, choose_backend, worker_environment

__all__ = ["Cuda", "check_cuda", "check_devices", "check_libraries", "check_rendering", "judge_cuda", "try_frame"]

LIMIT_S = 5.0
NO_DEVICE = 100  # CUDA_ERROR_NO_DEVICE
DRIVER_PROC = Path("/proc/driver/nvidia/version")

_FRAME = """
import mujoco, numpy, os
SCENE = "<mujoco><worldbody><light pos='0 0 3'/><geom size='1'/></worldbody></mujoco>"
try:
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
    """What the CUDA driver says: its version (12080 is 12.8), cuInit's status, the names of the visible GPUs."""

    version: int
    error: int = 0
    gpus: tuple[str, ...] = ()


def check_rendering(environ: Mapping[str, str], versions: Mapping[str, str]) -> list[Finding]:
    """The GL libraries, the back end that `--render auto` chooses, one real frame, and the EGL devices."""
    graphics = find_graphics(environ)
    backend = choose_backend("auto", environ, graphics)
    frame = try_frame(backend, environ) if backend.obstacle is None and "mujoco" in versions else None
    return [*check_libraries(graphics, backend), *_check_backend(backend, environ, frame),
            *check_devices(graphics, environ)]


def check_libraries(graphics: Graphics, backend: Backend) -> list[Finding]:
    """Which GL libraries load. One that the back end can do without is no warning."""
    there = [name for name in PACKAGES if name not in graphics.failures]
    failing = [name for name in PACKAGES if name in graphics.failures]
    absent = [name for name in failing if "No such file" in graphics.failures[name]]
    broken = dict.fromkeys(graphics.failures[name] for name in failing if name not in absent)
    detail = "; ".join([", ".join(there) or "none", *(["not " + ", ".join(absent)] if absent else []), *broken])
    needed = bool(failing) and (backend.obstacle is not None or bool(broken))
    fix = install_command([PACKAGES[name] for name in failing]) if failing else None
    return [Finding(level="warning" if needed else "ok", subject="GL libraries", detail=detail, fix=fix)]
