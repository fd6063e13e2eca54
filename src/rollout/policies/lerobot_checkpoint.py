"""A LeRobot checkpoint, loaded: the policy with its weights, and its saved pre- and post-processor."""

from __future__ import annotations

import dataclasses
import io
import json
import re
import shlex
import sys
from collections.abc import Mapping
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, Final

import torch
from msgspec import Struct

from rollout.config import nearest
from rollout.errors import UsageError
from rollout.policies.lerobot_files import CONFIG, WEIGHTS, digest, find_folder, read_json
from rollout.policies.lerobot_output import overheard
from rollout.policies.lerobot_trust import check_steps, without_remote_code

__all__ = ["Checkpoint", "load_checkpoint", "require_lerobot"]

PREPROCESSOR: Final = "policy_preprocessor.json"
PROCESSORS: Final = (PREPROCESSOR, "policy_postprocessor.json")
DEVICE_STEP: Final = "device_processor"

STATISTICS: Final = re.compile(r"(un)?normalize[_.]|(in|out)put_normalizer\.")
"""Weights of a policy that normalises by itself, as all did before there were processors (the prefixes are those in
LeRobot's processor/migrate_policy_normalization.py)."""

REFUSED: Final[Mapping[str, str]] = {
    "gaussian_actor": "it predicts no action chunks",
    "lingbot_va": "it keeps a cache of the whole episode inside the policy",
    "tdmpc": "it keeps its last plan inside the policy, and starts the next one from there",
}
"""Policies that remember their episode themselves: one object of them cannot serve several episodes at once."""

EXTRAS: Final[Mapping[str, str]] = {"pi0": "pi", "pi05": "pi", "pi0_fast": "pi"}  # others: the policy's type
OURS: Final = ("device", "pretrained_path", "pretrained_revision")  # settings that are not the user's to give


class Checkpoint(Struct, frozen=True, kw_only=True):
    """What there is to a checkpoint. The first four are LeRobot's objects."""

    policy: Any
    settings: Any  # its `PreTrainedConfig`
    preprocessor: Any
    postprocessor: Any
    saved_names: Mapping[str, str]  # the preprocessor's rename map
    chunk_size: int  # actions predicted at once
    n_action_steps: int  # how many of them it executes
    versions: dict[str, str]


def require_lerobot() -> None:
    """Raise `UsageError` with one line that says what to install where LeRobot is missing, or too old."""
    if sys.version_info < (3, 12):
        found = f"{sys.version_info.major}.{sys.version_info.minor}"
        raise UsageError(f"LeRobot needs Python 3.12 or newer, and this is {found}: see docs/lerobot.md")
    try:
        found = version("lerobot")
    except PackageNotFoundError as exc:
        raise UsageError(
            "LeRobot is not installed; run: pip install 'rollout-engine[lerobot]' (see docs/lerobot.md)"
        ) from exc
    if _numbers(found) < (0, 5):
        raise UsageError(
            f"LeRobot {found} is too old; run: pip install -U 'lerobot>=0.5' (see docs/lerobot.md)"
        )


def load_checkpoint(
    locator: str,
    revision: str | None,
    overrides: Mapping[str, Any],
    device: torch.device,
    *,
    compiled: bool,
    trusted: bool,
) -> Checkpoint:
    """Load what `locator` names onto `device`, in evaluation mode, with `overrides` of the policy's settings.

    Raises `UsageError` with one line where it cannot be loaded as it was saved, and where Python of somebody else's
    would be run for it that is not `trusted`.
    """
    require_lerobot()
    folder = find_folder(locator, revision)
    with overheard() as said, without_remote_code(trusted=trusted):
        for name in PROCESSORS:
            check_steps(folder / name, trusted=trusted)
        settings = _settings(folder, {**overrides, "device": str(device)})
        if compiled:
            _ask_to_compile(settings)
        chunk_size, n_action_steps = _chunk(settings)
        policy = _policy(folder, settings, said)
        preprocessor, postprocessor = _processors(folder, settings, device)
    policy.to(device).eval().requires_grad_(False)
    return Checkpoint(
        policy=policy,
        settings=settings,
        preprocessor=preprocessor,
        postprocessor=postprocessor,
        saved_names=_saved_names(preprocessor),
        chunk_size=chunk_size,
        n_action_steps=n_action_steps,
        versions={"lerobot": version("lerobot"), "checkpoint": digest(folder)},
    )


def _numbers(text: str) -> tuple[int, ...]:
    return tuple(int(part) for part in re.findall(r"\d+", text)[:2])


def _settings(folder: Path, overrides: Mapping[str, Any]) -> Any:
    """The policy's settings. Raises `UsageError` where they are not of this LeRobot's."""
    import lerobot.policies  # noqa: F401  registers the types
    from lerobot.configs.policies import PreTrainedConfig

    kind = str(read_json(folder / CONFIG).get("type"))
    known = sorted(PreTrainedConfig.get_known_choices())
    installed = f"LeRobot {version('lerobot')}"
    if kind not in known:
        hint = nearest(kind, known)
        raise UsageError(
            f"{folder / CONFIG}: {installed} has no policy type {kind!r}{hint} (it has {', '.join(known)})"
        )
    if kind in REFUSED:
        raise UsageError(f"a {kind} policy cannot be run: {REFUSED[kind]}")
    fields = [field.name for field in dataclasses.fields(PreTrainedConfig.get_choice_class(kind))]
    for name in overrides:
        if name not in fields:
            raise UsageError(
                f"a {kind} policy has no setting {name!r}{nearest(name, fields)} (see --policy-arg)"
            )
    arguments = [f"--{name}={_text(value)}" for name, value in overrides.items()]
    try:
        settings = PreTrainedConfig.from_pretrained(folder, cli_overrides=arguments)
    except (Exception, SystemExit) as exc:  # draccus' own errors, argparse's exit, a policy's checks
        raise UsageError(
            f"{folder / CONFIG} does not fit {installed}: {_first_line(exc)} "
            "(it may be another version's, or a --policy-arg be wrong)"
        ) from exc
    if getattr(settings, "pretrained_backbone_weights", None) is not None:
        # They would be downloaded, only to be replaced by the checkpoint's.
        settings.pretrained_backbone_weights = None
    return settings


def _text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value)


def _chunk(settings: Any) -> tuple[int, int]:
    """How many actions a chunk has, and how many of them the checkpoint executes.

    A policy with a `horizon` cuts its chunks itself, to `n_action_steps`; it is told to return all that it predicts
    from the current step on, and the engine cuts.
    """
    if hasattr(settings, "action_chunk_size"):  # VQ-BeT executes what it predicts
        return settings.action_chunk_size, settings.action_chunk_size
    executed = int(settings.n_action_steps)
    if hasattr(settings, "horizon"):
        settings.n_action_steps = settings.horizon - settings.n_obs_steps + 1
        return settings.n_action_steps, executed
    return int(getattr(settings, "chunk_size", executed)), executed


def _ask_to_compile(settings: Any) -> None:
    if not hasattr(settings, "compile_model") or settings.type == "diffusion":
        raise UsageError(f"--compile: LeRobot compiles no {settings.type} policy that was saved without")
    settings.compile_model = True


def _policy(folder: Path, settings: Any, said: io.StringIO) -> Any:
    from lerobot.policies.factory import get_policy_class

    if settings.use_peft:
        raise UsageError(f"{folder} needs an adapter (PEFT): merge it into its base policy, and save that")
    try:
        policy = get_policy_class(settings.type).from_pretrained(str(folder), config=settings)
    except ImportError as exc:
        raise UsageError(_missing_extra(settings.type, exc)) from exc
    except Exception as exc:  # shapes that differ, a damaged file, a tokenizer that cannot be fetched
        raise UsageError(f"{folder} cannot be loaded: {_first_line(exc)}") from exc
    _check_weights(policy, folder / WEIGHTS, said.getvalue())
    return policy


def _check_weights(policy: Any, file: Path, said: str) -> None:
    """Raise `UsageError` where a part of the policy was left as it was initialised, which LeRobot only logs."""
    from safetensors import safe_open

    if (
        "All keys loaded successfully" in said
    ):  # pi0 and its kin may rename weights: names tell nothing of theirs
        return
    # They print what went wrong, and go on with what they have. Keys that are merely not expected do no harm.
    for sign in ("size mismatch", "Could not load state dict from"):
        if line := next((line.strip() for line in said.splitlines() if sign in line), None):
            raise UsageError(f"{file} cannot be loaded: {line}")
    with safe_open(file, "pt") as saved:
        names = set(saved.keys())
    state = policy.state_dict()
    found = {name for name in state if {name, name.removeprefix("model.")} & names}
    loaded = {state[name].data_ptr() for name in found}  # tied weights are saved once
    missing = [name for name, weight in state.items() if weight.numel() and weight.data_ptr() not in loaded]
    if missing:
        raise UsageError(
            f"{file} lacks {len(missing)} of the policy's {len(state)} weights, e.g. {missing[0]}: "
            "it was saved by another version of LeRobot"
        )


def _missing_extra(kind: str, exc: ImportError) -> str:
    named = re.search(r"lerobot\[([\w-]+)\]", str(exc))
    extra = named[1] if named else EXTRAS.get(kind, kind)
    return f"a {kind} policy needs more of LeRobot ({_first_line(exc)}); run: pip install 'lerobot[{extra}]'"


def _processors(folder: Path, settings: Any, device: torch.device) -> tuple[Any, Any]:
    from lerobot.policies.factory import make_pre_post_processors
    from lerobot.processor.pipeline import ProcessorMigrationError

    steps = read_json(folder / PREPROCESSOR).get("steps", ())
    moves = any(step.get("registry_name") == DEVICE_STEP for step in steps)
    try:
        found: tuple[Any, Any] = make_pre_post_processors(
            settings,
            pretrained_path=str(folder),
            preprocessor_overrides={DEVICE_STEP: {"device": str(device)}} if moves else {},
        )
    except ProcessorMigrationError as exc:
        raise UsageError(_without_processors(folder)) from exc
    except ImportError as exc:
        raise UsageError(_missing_extra(settings.type, exc)) from exc
    except Exception as exc:  # a step that is not known, a tokenizer that cannot be fetched
        raise UsageError(f"{folder}: its processors cannot be loaded: {_first_line(exc)}") from exc
    return found


def _without_processors(folder: Path) -> str:
    """LeRobot takes every checkpoint without them for an old one."""
    from safetensors import safe_open

    with safe_open(folder / WEIGHTS, "pt") as saved:
        old = any(STATISTICS.match(name) for name in saved.keys())  # noqa: SIM118  it is no dict
    if not old:
        return (
            f"{folder} has no {PREPROCESSOR}: call save_pretrained of the policy's pre- and postprocessor "
            "with the same folder, too"
        )
    # LeRobot's own line names a path in its repository, which a wheel does not have.
    return (
        f"{folder} was saved before LeRobot had processors; to write {folder}_migrated, which has them, run: "
        f"python -m lerobot.processor.migrate_policy_normalization --pretrained-path {shlex.quote(str(folder))}"
    )


def _saved_names(preprocessor: Any) -> Mapping[str, str]:
    for step in preprocessor.steps:
        if hasattr(step, "rename_map"):
            return dict(step.rename_map)
    return {}


def _first_line(exc: BaseException) -> str:
    lines = [line.strip() for line in str(exc).splitlines() if line.strip()]
    if not lines:
        return type(exc).__name__
    return " ".join(lines[: 2 if lines[0].endswith(":") else 1])  # a heading tells nothing
