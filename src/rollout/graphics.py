"""What this machine has for rendering, found without loading GL, CUDA or MuJoCo into this process."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Literal

import msgspec
from msgspec import Struct

from rollout import probe

__all__ = [
    "PACKAGES",
    "EglDevice",
    "Graphics",
    "find_graphics",
    "install_command",
    "library_fix",
    "run_probe",
    "sudo",
]

PACKAGES = {"libEGL": "libegl1", "libGL": "libgl1", "libOSMesa": "libosmesa6"}  # Debian's and Ubuntu's names
PROBE_LIMIT_S = 20.0  # a cold NVIDIA driver takes seconds to come up
_VENDOR_FILES = ("usr/share/glvnd/egl_vendor.d", "etc/glvnd/egl_vendor.d")  # drivers of libEGL
_CONTAINER_MARKS = (".dockerenv", "run/.containerenv", "var/run/secrets/kubernetes.io")


class EglDevice(Struct, frozen=True, kw_only=True):
    """One EGL device; its position in the list is its `MUJOCO_EGL_DEVICE_ID`."""

    kind: Literal["nvidia", "drm", "software", "unusable"]  # drm: a GPU that Mesa can render on
    cuda: int = -1  # the ordinal that CUDA gives an NVIDIA device where CUDA_VISIBLE_DEVICES is not set


class Graphics(Struct, frozen=True, kw_only=True):
    """The libraries, devices and drivers of a machine."""

    failures: dict[str, str] = {}  # the libraries that do not load, by name, each with the loader's words
    devices: tuple[EglDevice, ...] = ()
    nvidia: tuple[str, ...] = ()  # the UUIDs of the NVIDIA GPUs, in PCI order; empty strings where unknown
    nvidia_driver: str = ""  # its major version, e.g. "570"
    nvidia_registered: bool = False  # libEGL was told of NVIDIA's EGL
    container: bool = False

    def broken(self, name: str) -> bool:
        """Whether the library `name` is there, and does not load."""
        return "No such file" not in self.failures.get(name, "No such file")

    def complaint(self, name: str) -> str:
        """What is wrong with the library `name`, which does not load."""
        return self.failures[name] if self.broken(name) else f"no {name}"


def find_graphics(environ: Mapping[str, str], root: Path = Path("/")) -> Graphics:
    """Look at this machine: 70 ms with Mesa.

    A probe that crashes or hangs counts as no library at all, with what happened as the reason.
    """
    # CUDA_VISIBLE_DEVICES could renumber the CUDA ordinals that EGL tells.
    clean = {name: value for name, value in environ.items() if name != "CUDA_VISIBLE_DEVICES"}
    try:
        found = msgspec.json.decode(run_probe("gl", clean, PROBE_LIMIT_S), type=Graphics)
    except RuntimeError as exc:
        found = Graphics(failures=dict.fromkeys(probe.LIBRARIES, str(exc)))
    return msgspec.structs.replace(
        found,
        nvidia=_nvidia_uuids(root),
        nvidia_driver=_nvidia_driver(root),
        nvidia_registered=_nvidia_registered(root),
        container=any((root / mark).exists() for mark in _CONTAINER_MARKS),
    )


def run_probe(what: Literal["gl", "cuda"], environ: Mapping[str, str], limit_s: float) -> str:
    """Run `rollout.probe` and return its JSON.

    Raises `RuntimeError` with one line where it failed or took longer than `limit_s`.
    """
    command = [sys.executable, "-I", "-S", probe.__file__, what]
    try:
        done = subprocess.run(
            command, env=dict(environ), capture_output=True, text=True, timeout=limit_s, check=False
        )
    except subprocess.TimeoutExpired:
        raise RuntimeError(f"the driver did not answer in {limit_s:g} s") from None
    if done.returncode:
        last = done.stderr.strip().rpartition("\n")[2]
        raise RuntimeError(last or f"the driver's library crashed with signal {-done.returncode}")
    return done.stdout


def library_fix(names: Sequence[str], graphics: Graphics) -> str:
    """The command that installs the libraries `names`, which do not load."""
    option = "--reinstall " if any(map(graphics.broken, names)) else ""
    return install_command([PACKAGES[name] for name in names], option)


def install_command(packages: Sequence[str], option: str = "") -> str:
    """A command that installs Debian packages, for this user to paste."""
    return f"{sudo()}apt-get install -y {option}{' '.join(dict.fromkeys(packages))}"


def sudo() -> str:
    """What a command for root begins with: nothing where this user is root."""
    return "" if os.geteuid() == 0 else "sudo "


def _nvidia_uuids(root: Path) -> tuple[str, ...]:
    found = []
    for information in sorted((root / "proc/driver/nvidia/gpus").glob("*/information")):
        text = information.read_text()
        uuid, minor = re.search(r"GPU UUID:\s*(\S+)", text), re.search(r"Device Minor:\s*(\d+)", text)
        # A container may be given a part of the host's GPUs.
        if minor is None or (root / f"dev/nvidia{minor[1]}").exists():
            found.append(uuid[1] if uuid else "")
    return tuple(found) or tuple("" for _ in (root / "dev").glob("nvidia[0-9]*"))


def _nvidia_driver(root: Path) -> str:
    version = root / "proc/driver/nvidia/version"
    found = re.search(r"\b(\d{3})\.\d+", version.read_text()) if version.exists() else None
    return found[1] if found else ""


def _nvidia_registered(root: Path) -> bool:
    files = [file for directory in _VENDOR_FILES for file in (root / directory).glob("*.json")]
    return any("EGL_nvidia" in file.read_text() for file in files)
