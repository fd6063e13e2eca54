"""What can only be known by loading a driver's library: run as a script, in a process of its own.

A parent that loaded GL or CUDA could not fork clean workers, and a broken driver may crash whoever loads it.
No GL or CUDA context is created here. The script needs the standard library alone; it prints a line of JSON.
"""

from __future__ import annotations

import ctypes
import json
import os
import sys
from ctypes import CFUNCTYPE, POINTER, byref, c_char_p, c_int, c_ssize_t, c_uint, c_void_p
from pathlib import Path
from typing import Any

# By the name in a message; any of the candidates will do, as for PyOpenGL, which loads them for MuJoCo.
LIBRARIES = {
    "libEGL": ("libEGL.so.1",),
    "libGL": ("libGL.so.1", "libOpenGL.so.0", "libGLESv2.so.2"),
    "libOSMesa": ("libOSMesa.so.8", "libOSMesa.so.6"),
    "libEGL_nvidia": ("libEGL_nvidia.so.0",),
}
EGL_EXTENSIONS = 0x3055
EGL_DRM_DEVICE_FILE_EXT = 0x3233
EGL_DRM_RENDER_NODE_FILE_EXT = 0x3377
EGL_CUDA_DEVICE_NV = 0x323A
NVIDIA_PCI_VENDOR = "0x10de"
MAX_DEVICES = 64


def libraries() -> dict[str, str]:
    """The libraries that do not load, by name, each with the loader's words."""
    failures = {}
    for name, candidates in LIBRARIES.items():
        complaints = [complaint for candidate in candidates if (complaint := _complaint(candidate))]
        if len(complaints) == len(candidates):
            # The first complaint that is more than "no such file": that library is there, and broken.
            failures[name] = min(complaints, key=lambda text: "No such file" in text)
    return failures


def _complaint(library: str) -> str:
    try:
        ctypes.CDLL(library)
    except OSError as exc:
        return str(exc)
    return ""


def egl_devices() -> list[dict[str, Any]]:
    """The EGL devices as `MUJOCO_EGL_DEVICE_ID` counts them: `kind`, and NVIDIA's CUDA ordinal as `cuda`."""
    egl = ctypes.CDLL("libEGL.so.1")
    egl.eglGetProcAddress.restype = c_void_p
    egl.eglGetProcAddress.argtypes = [c_char_p]
    query = egl.eglGetProcAddress(b"eglQueryDevicesEXT")
    text = egl.eglGetProcAddress(b"eglQueryDeviceStringEXT")
    attribute = egl.eglGetProcAddress(b"eglQueryDeviceAttribEXT")
    if not (query and text and attribute):
        return []
    handles, count = (c_void_p * MAX_DEVICES)(), c_int()
    if not CFUNCTYPE(c_uint, c_int, c_void_p, POINTER(c_int))(query)(MAX_DEVICES, handles, byref(count)):
        return []
    ask_text = CFUNCTYPE(c_char_p, c_void_p, c_int)(text)
    ask_number = CFUNCTYPE(c_uint, c_void_p, c_int, POINTER(c_ssize_t))(attribute)
    return [_device(handle, ask_text, ask_number) for handle in handles[: count.value]]


def _device(handle: int | None, ask_text: Any, ask_number: Any) -> dict[str, Any]:
    extensions = (ask_text(handle, EGL_EXTENSIONS) or b"").decode().split()
    if "EGL_NV_device_cuda" in extensions:
        ordinal = c_ssize_t(-1)
        ask_number(handle, EGL_CUDA_DEVICE_NV, byref(ordinal))
        return {"kind": "nvidia", "cuda": ordinal.value}
    if "EGL_MESA_device_software" in extensions:
        return {"kind": "software"}
    wanted = "EGL_EXT_device_drm_render_node" in extensions
    node = ask_text(handle, EGL_DRM_RENDER_NODE_FILE_EXT if wanted else EGL_DRM_DEVICE_FILE_EXT) or b""
    return {"kind": "drm" if _mesa_can_use(node.decode()) else "unusable"}


def _mesa_can_use(node: str) -> bool:
    # Mesa lists every card: one that we may not open too, and NVIDIA's, which it has no driver for.
    vendor = Path("/sys/class/drm") / Path(node).name / "device" / "vendor"
    return (
        bool(node)
        and os.access(node, os.R_OK | os.W_OK)
        and not (vendor.exists() and vendor.read_text().strip() == NVIDIA_PCI_VENDOR)
    )


def cuda() -> dict[str, Any]:
    """The driver's CUDA version (12080 is 12.8), the visible GPUs' names, and cuInit's status as `error`."""
    driver = ctypes.CDLL("libcuda.so.1")
    version, count = c_int(), c_int()
    driver.cuDriverGetVersion(byref(version))
    status = driver.cuInit(0) or driver.cuDeviceGetCount(byref(count))
    gpus = [_gpu_name(driver, ordinal) for ordinal in range(count.value)]
    return {"version": version.value, "error": status, "gpus": gpus}


def _gpu_name(driver: Any, ordinal: int) -> str:
    device, name = c_int(), ctypes.create_string_buffer(128)
    driver.cuDeviceGet(byref(device), ordinal)
    driver.cuDeviceGetName(name, len(name), device)
    return name.value.decode()


def main() -> None:
    """Print what the first argument names: `gl` or `cuda`."""
    if sys.argv[1] == "cuda":
        print(json.dumps(cuda()))
        return
    failures = libraries()
    print(json.dumps({"failures": failures, "devices": [] if "libEGL" in failures else egl_devices()}))


if __name__ == "__main__":
    main()
