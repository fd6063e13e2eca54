"""Where a LeRobot checkpoint is: a folder, or a repository of the Hugging Face hub."""

from __future__ import annotations

import hashlib
import json
import re
from pathlib import Path
from typing import Any, Final

from rollout.errors import UsageError

__all__ = ["CONFIG", "WEIGHTS", "digest", "find_folder", "read_json"]

CONFIG: Final = "config.json"
WEIGHTS: Final = "model.safetensors"
ADAPTER: Final = "adapter_config.json"

REPOSITORY: Final = re.compile(r"[\w.-]+/[\w.-]+")
WANTED: Final = ("*.json", "*.safetensors", "*.model", "*.txt")
UNWANTED: Final = ("checkpoints/*", "*training_state/*")
WITHIN: Final = ("pretrained_model", "checkpoints/last/pretrained_model", "last/pretrained_model")


def find_folder(locator: str, revision: str | None) -> Path:
    """The folder of the checkpoint, downloaded where `locator` is a repository that is not in the hub's cache.

    Raises `UsageError` with one line where there is none.
    """
    path = Path(locator).expanduser()
    if path.is_dir():
        if revision is not None:
            raise UsageError(f"revision {revision!r}: {path} is a folder, which has none")
        _check_files(path)
        return path
    if path.exists():
        raise UsageError(f"{path} is a file: give the folder that holds {CONFIG} and {WEIGHTS}")
    if locator.startswith((".", "~", "/")) or not REPOSITORY.fullmatch(locator):
        raise UsageError(f"there is no folder {path}; a repository of the hub is called OWNER/NAME")
    return _downloaded(locator, revision)


def read_json(path: Path) -> dict[str, Any]:
    """The object in `path`; empty where there is no such file. Raises `UsageError` where it holds something else."""
    try:
        found = json.loads(path.read_text())
    except FileNotFoundError:
        return {}
    except (OSError, ValueError, RecursionError) as exc:
        raise UsageError(f"{path} cannot be read: {exc}") from exc
    if not isinstance(found, dict):
        raise UsageError(f"{path} holds no JSON object")
    return found


def digest(folder: Path) -> str:
    """64 bits, in hexadecimal, over all that decides what a checkpoint does: settings, weights and processors."""
    state = hashlib.blake2b(digest_size=8)
    for path in sorted([folder / CONFIG, *folder.glob("*.safetensors"), *folder.glob("policy_*.json")]):
        state.update(path.name.encode() + b"\0")
        with path.open("rb") as file:
            state.update(hashlib.file_digest(file, "blake2b").digest())
    return state.hexdigest()


def _check_files(folder: Path) -> None:
    missing = [name for name in (CONFIG, WEIGHTS) if not (folder / name).is_file()]
    if not missing:
        return
    for inner in WITHIN:
        if (folder / inner / CONFIG).is_file():
            raise UsageError(f"{folder} is no checkpoint, but holds one: give {folder / inner}")
    if (folder / ADAPTER).is_file():
        raise UsageError(f"{folder} holds an adapter (PEFT): merge it into its base policy, and save that")
    raise UsageError(f"{folder} is no LeRobot checkpoint: it has no {' and no '.join(missing)}")


def _downloaded(repository: str, revision: str | None) -> Path:
    from huggingface_hub import constants, snapshot_download
    from huggingface_hub.errors import (
        GatedRepoError,
        HfHubHTTPError,
        LocalEntryNotFoundError,
        RepositoryNotFoundError,
        RevisionNotFoundError,
    )

    try:
        found = snapshot_download(
            repository,
            revision=revision,
            allow_patterns=list(WANTED),
            ignore_patterns=list(UNWANTED),
            local_files_only=constants.HF_HUB_OFFLINE,
        )
    except GatedRepoError as exc:
        raise UsageError(
            f"{repository} is gated: ask for access on its page, and log in with `hf auth login`"
        ) from exc
    except RevisionNotFoundError as exc:
        raise UsageError(f"{repository} has no revision {revision!r}") from exc
    except RepositoryNotFoundError as exc:
        raise UsageError(
            f"there is no folder {repository} here, and no such repository on the hub "
            "(for a private one, log in with `hf auth login`)"
        ) from exc
    except LocalEntryNotFoundError as exc:
        raise UsageError(
            f"there is no folder {repository} here, and the hub cannot be reached to look there"
        ) from exc
    except (HfHubHTTPError, OSError, ValueError) as exc:
        reason = str(exc).strip().partition("\n")[0]
        raise UsageError(f"{repository} cannot be downloaded: {reason}") from exc
    _check_files(Path(found))
    return Path(found)
