"""Which of MuJoCo's rendering back ends a worker gets, and the environment variables that select it."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Literal

from msgspec import Struct

from rollout.errors import UsageError
from rollout.graphics import PACKAGES, Graphics, find_graphics, install_command, library_fix, sudo

__all__ = ["Backend", "Obstacle", "choose_backend", "require_rendering", "worker_environment"]

Render = Literal["auto", "gpu", "cpu"]
Way = Literal["gpu", "osmesa", "mesa"]  # EGL on a GPU, OSMesa, EGL on Mesa's software device

_WAYS: dict[Render, tuple[Way, ...]] = {
    "auto": ("gpu", "osmesa", "mesa"),
    "gpu": ("gpu",),
    "cpu": ("osmesa", "mesa"),
}
_NEEDS: dict[Way, tuple[str, ...]] = {
    "gpu": ("libEGL", "libGL"),
    "osmesa": ("libOSMesa",),
    "mesa": ("libEGL", "libGL"),
}
# The values that mujoco 3.3.0 knows on Linux (mujoco.rendering.classic.gl_context).
_HEADLESS = ("egl", "osmesa")
_ON_A_DISPLAY = ("enable", "enabled", "on", "true", "1", "glfw", "glx")
_SWITCHED_OFF = ("disable", "disabled", "off", "false", "0")
_GPU_KINDS = ("nvidia", "drm")
_NVIDIA_JSON = """echo '{"file_format_version":"1.0.0","ICD":{"library_path":"libEGL_nvidia.so.0"}}'"""
_VENDOR_FILE = "/usr/share/glvnd/egl_vendor.d/10_nvidia.json"


class Obstacle(Struct, frozen=True):
    """Why something cannot be used, and the command that mends it."""

    text: str
    fix: str


class Backend(Struct, frozen=True, kw_only=True):
    """A rendering back end, and the variables that select it."""

    name: str  # MUJOCO_GL's value; "none" where nothing can render
    env: dict[str, str] = {}  # to be laid over a worker's environment: what the user set is left out
    reason: str  # one line, for the record
    devices: tuple[str, ...] = ()  # the EGL devices to spread workers over; () leaves the choice to MuJoCo
    cuda_visible: str = ""  # the user's CUDA_VISIBLE_DEVICES
    obstacle: Obstacle | None = None

    @property
    def problem(self) -> str | None:
        """Why it cannot render and what to do, in one line; None where it can."""
        return None if self.obstacle is None else f"{self.obstacle.text}; fix: {self.obstacle.fix}"


def choose_backend(
    render: Render, environ: Mapping[str, str] | None = None, graphics: Graphics | None = None
) -> Backend:
    """Choose the back end for `--render`; MUJOCO_GL and PYOPENGL_PLATFORM win where the user set them.

    `auto` takes a GPU through EGL, else OSMesa, else EGL on Mesa's software device; `gpu` the first of these
    alone; `cpu` the other two. Where nothing can render, the back end has a `problem`. Without `graphics` the
    machine is looked at, which takes about 0.1 s (`find_graphics`). `environ` is this process's by default.
    """
    environ = os.environ if environ is None else environ
    wanted = environ.get("MUJOCO_GL", "").strip().lower()
    if wanted and wanted not in _HEADLESS:
        return _as_the_user_says(wanted, render, environ)
    names = [name for name in (wanted, environ.get("PYOPENGL_PLATFORM", "").strip().lower()) if name]
    ways = [way for way in _WAYS[render] if all(name == _name(way) for name in names)]
    if not ways:
        return _conflict(render, environ)
    found = graphics or find_graphics(environ)
    obstacles: dict[Way, Obstacle] = {}
    for way in ways:
        obstacle = _obstacle(way, found, environ)
        if obstacle is None:
            return _backend(way, found, environ, obstacles.get("gpu"))
        obstacles[way] = obstacle
    return _nothing(obstacles, found)


def require_rendering(backend: Backend) -> None:
    """Raise `UsageError` where `backend` cannot render: one line that says what to do."""
    if backend.problem is not None:
        raise UsageError(f"cannot render: {backend.problem}")


def worker_environment(backend: Backend, worker: int) -> dict[str, str]:
    """The variables for worker `worker` (counted from 0): workers take the visible GPUs in turn."""
    if not backend.devices:
        return dict(backend.env)
    device = backend.devices[worker % len(backend.devices)]
    env = backend.env | {"MUJOCO_EGL_DEVICE_ID": device}
    if backend.cuda_visible and device not in backend.cuda_visible:
        # robosuite 1.4.0 asserts that the device's number occurs in CUDA_VISIBLE_DEVICES: false for UUIDs and
        # for the software device. CUDA ignores what follows a -1, so it still sees what the user wants.
        env["CUDA_VISIBLE_DEVICES"] = f"{backend.cuda_visible},-1,{device}"
    return env


def _name(way: Way) -> str:
    return "osmesa" if way == "osmesa" else "egl"


def _as_the_user_says(wanted: str, render: Render, environ: Mapping[str, str]) -> Backend:
    setting = f"MUJOCO_GL={environ['MUJOCO_GL']}"
    text = None
    if wanted in _SWITCHED_OFF:
        text = f"{setting} switches rendering off"
    elif wanted not in _ON_A_DISPLAY:
        text = f"{setting} is none of egl, osmesa, glfw"
    elif render != "auto":
        text = f"--render {render} contradicts {setting}"
    elif not (environ.get("DISPLAY") or environ.get("WAYLAND_DISPLAY")):
        text = f"{setting} needs a display, and DISPLAY is not set"
    obstacle = None if text is None else Obstacle(text, "unset MUJOCO_GL")
    return Backend(name=wanted, reason=f"{wanted}: {setting} is set", obstacle=obstacle)


def _conflict(render: Render, environ: Mapping[str, str]) -> Backend:
    names = [name for name in ("MUJOCO_GL", "PYOPENGL_PLATFORM") if environ.get(name)]
    settings = [f"--render {render}"] * (render != "auto") + [f"{name}={environ[name]}" for name in names]
    verdict = "contradict each other" if len(settings) > 1 else "is neither egl nor osmesa"
    obstacle = Obstacle(f"{' and '.join(settings)} {verdict}", f"unset {' '.join(names)}")
    return Backend(name="none", reason=f"none: {obstacle.text}", obstacle=obstacle)


def _obstacle(way: Way, found: Graphics, environ: Mapping[str, str]) -> Obstacle | None:
    """Why rendering in this way cannot work here; None where it can."""
    if way == "gpu" and not (found.nvidia or any(device.kind in _GPU_KINDS for device in found.devices)):
        return Obstacle("no GPU that can render", "use --render cpu")
    failing = [name for name in _NEEDS[way] if name in found.failures]
    if failing:
        return _libraries(failing, found)
    if way == "gpu" and not _gpus(found, environ):
        return _nvidia(found, environ)
    if way == "mesa" and not _software(found):
        return Obstacle("EGL lists no software device", install_command(["libegl-mesa0", "libgl1-mesa-dri"]))
    return None


def _libraries(names: Sequence[str], found: Graphics) -> Obstacle:
    complaints = dict.fromkeys(map(found.complaint, names))  # once each: a crash is the complaint of them all
    return Obstacle(", ".join(complaints), library_fix(names, found))


def _nvidia(found: Graphics, environ: Mapping[str, str]) -> Obstacle:
    if any(device.kind == "nvidia" for device in found.devices):
        visible = environ.get("CUDA_VISIBLE_DEVICES", "")
        text = f"CUDA_VISIBLE_DEVICES={visible} leaves no GPU to render on"
        return Obstacle(text, "unset CUDA_VISIBLE_DEVICES")
    if "libEGL_nvidia" in found.failures:
        # The driver's EGL is a part of its own: containers are given it only on demand.
        fix = (
            install_command([f"libnvidia-gl-{found.nvidia_driver}"])
            if found.nvidia_driver and not found.container
            else "docker run --gpus all -e NVIDIA_DRIVER_CAPABILITIES=all …"
        )
        return Obstacle("the NVIDIA driver's EGL (libEGL_nvidia) is missing", fix)
    if not found.nvidia_registered:
        fix = f"{_NVIDIA_JSON} | {sudo()}tee {_VENDOR_FILE}"
        return Obstacle("libEGL was not told of the NVIDIA driver", fix)
    return Obstacle("EGL does not list the NVIDIA GPU", "nvidia-smi")


def _nothing(obstacles: Mapping[Way, Obstacle], found: Graphics) -> Backend:
    # Where the CPU would do, no word of the GPU: libraries are the easier thing to come by.
    ways: list[Way] = [way for way in obstacles if way != "gpu"] or ["gpu"]
    needed = {name for way in ways for name in _NEEDS[way]}
    failing = [name for name in PACKAGES if name in needed and name in found.failures]
    obstacle = obstacles[ways[0]] if len(ways) == 1 or not failing else _libraries(failing, found)
    return Backend(name="none", reason=f"none: {obstacle.text}", obstacle=obstacle)


def _backend(way: Way, found: Graphics, environ: Mapping[str, str], no_gpu: Obstacle | None) -> Backend:
    name = _name(way)
    ours = {"PYOPENGL_PLATFORM": name}
    if way != "gpu":
        ours["LP_NUM_THREADS"] = "0"  # llvmpipe draws in the thread that asks: workers are the parallelism
    env = {key: value for key, value in ours.items() if not environ.get(key)}
    if environ.get("MUJOCO_GL") != name:  # not set, or in capitals, which robosuite does not understand
        env["MUJOCO_GL"] = name
    devices = {"gpu": _gpus(found, environ), "osmesa": (), "mesa": _software(found)}[way]
    return Backend(
        name=name,
        env=env,
        reason=_reason(way, devices, found, no_gpu),
        devices=() if environ.get("MUJOCO_EGL_DEVICE_ID") else devices,
        cuda_visible=environ.get("CUDA_VISIBLE_DEVICES", "").strip(),
    )


def _reason(way: Way, gpus: Sequence[str], found: Graphics, no_gpu: Obstacle | None) -> str:
    if way != "gpu":
        return f"{_name(way)}: software rendering{f' ({no_gpu.text})' if no_gpu else ''}"
    maker = "NVIDIA " if any(device.kind == "nvidia" for device in found.devices) else ""
    return f"egl: {len(gpus)} {maker}GPU{'s' * (len(gpus) > 1)}"


def _software(found: Graphics) -> tuple[str, ...]:
    return tuple(str(i) for i, device in enumerate(found.devices) if device.kind == "software")[:1]


def _gpus(found: Graphics, environ: Mapping[str, str]) -> tuple[str, ...]:
    """The GPUs that CUDA_VISIBLE_DEVICES lets us use, as MUJOCO_EGL_DEVICE_ID counts them."""
    by_ordinal = {device.cuda: str(i) for i, device in enumerate(found.devices) if device.kind == "nvidia"}
    if by_ordinal:
        return tuple(by_ordinal[ordinal] for ordinal in _visible(environ, sorted(by_ordinal), found.nvidia))
    return tuple(str(i) for i, device in enumerate(found.devices) if device.kind == "drm")


def _visible(environ: Mapping[str, str], ordinals: Sequence[int], uuids: Sequence[str]) -> list[int]:
    """CUDA's reading of CUDA_VISIBLE_DEVICES: ordinals or prefixes of UUIDs, until one is neither."""
    if "CUDA_VISIBLE_DEVICES" not in environ:
        return list(ordinals)
    visible = []
    for word in map(str.strip, environ["CUDA_VISIBLE_DEVICES"].split(",")):
        by_uuid = [i for i, uuid in enumerate(uuids) if word and uuid.startswith(word)]
        matches = [int(word)] if word.isdigit() else by_uuid
        if len(matches) != 1 or matches[0] not in ordinals:
            break
        visible.append(matches[0])
    return visible
