"""Which Gymnasium environment a name means, and how it is made."""

from __future__ import annotations

import importlib
import inspect
import json
import re
from collections.abc import Callable, Mapping
from contextlib import suppress
from importlib.metadata import PackageNotFoundError, version
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from rollout.config import nearest
from rollout.envs.gymnasium_start import START_OPTIONS, Start
from rollout.errors import UsageError

if TYPE_CHECKING:
    import gymnasium
    from gymnasium.envs.registration import EnvSpec

__all__ = ["Entry", "find", "keywords", "newest"]

MAKE: Final = ("max_episode_steps", "disable_env_checker", "render_mode")  # taken by `gymnasium.make` itself
WORDS: Final[Mapping[str, Any]] = {"True": True, "False": False, "None": None}


class Entry(NamedTuple):
    """A registered environment: its specification, its class or factory, the arguments to make it with."""

    spec: EnvSpec
    creator: Callable[..., Any]
    arguments: dict[str, Any]
    start: Start

    @property
    def horizon(self) -> int | None:
        """The registered time limit in steps, or the one set with `--set max_episode_steps=N` (-1: none)."""
        limit = self.arguments.get("max_episode_steps")
        steps: int | None = self.spec.max_episode_steps if limit is None else limit
        return None if steps is None or steps < 1 else steps

    @property
    def versions(self) -> dict[str, str]:
        """Of Gymnasium, and of the package that defines the environment where it is an installed one."""
        import gymnasium

        found = {"gymnasium": gymnasium.__version__}
        package = self.creator.__module__.partition(".")[0]
        with suppress(PackageNotFoundError):  # a module on the path, or a package with a name of its own
            found[package] = version(package)
        return found

    def make(self) -> gymnasium.Env[Any, Any]:
        """Make the environment, wrapped as `gymnasium.make` wraps it."""
        import gymnasium

        # The checker costs every step a call, and warns of, or refuses, environments that can be run.
        arguments = {"disable_env_checker": True, **self.arguments}
        if self.horizon is not None and self.start.settle_steps:
            arguments["max_episode_steps"] = self.horizon + self.start.settle_steps  # they count nowhere
        return gymnasium.make(self.spec, **arguments)


def find(name: str, options: Mapping[str, str]) -> Entry:
    """The environment called `name`, a registered id or `module:id`, with `--set` options as arguments.

    An id without its version means the newest. Raises `UsageError`, in one line, where the module cannot be
    imported, the id is not registered, its code cannot be loaded, or it takes no such option.
    """
    from gymnasium.envs.registration import load_env_creator

    spec = _registered(name)
    try:
        entry_point = spec.entry_point
        creator = entry_point if callable(entry_point) else load_env_creator(str(entry_point))
    except Exception as exc:  # somebody else's code; a missing dependency, most often
        raise UsageError(f"gym:{name}: cannot load {spec.entry_point}: {_line(exc)}") from exc
    named = keywords(creator) or ()  # a constructor's own argument of that name wins
    ours = {key: text for key, text in options.items() if key in START_OPTIONS and key not in named}
    arguments = {key: _literal(text) for key, text in options.items() if key not in ours}
    _check_arguments(name, creator, arguments)
    if _renders(spec, creator):
        arguments.setdefault("render_mode", "rgb_array")  # chosen here or never; nothing renders until asked
    return Entry(spec, creator, arguments, Start.parse(ours))


def _registered(name: str) -> EnvSpec:
    from gymnasium.envs.registration import registry

    env_id = name
    if name not in registry and ":" in name:
        module, _, env_id = name.partition(":")
        try:
            importlib.import_module(module)
        except Exception as exc:  # somebody else's code
            raise UsageError(f"gym:{name}: cannot import {module!r}: {_line(exc)}") from exc
    spec = registry.get(env_id) or registry.get(newest(env_id, registry))
    if spec is None:
        near = nearest(env_id, registry)
        late = "what a script itself registers can be run by that script alone, with rollout.run(...)"
        raise UsageError(f"gym:{name}: no environment {env_id!r} is registered{near} ({late})")
    return spec


def newest(env_id: str, known: Mapping[str, Any]) -> str:
    """`Ant` -> `Ant-v5`. Unknown ids stay as they are."""
    versions = [
        int(known_id[len(env_id) + 2 :])
        for known_id in known
        if re.fullmatch(re.escape(env_id) + r"-v\d+", known_id)
    ]
    return f"{env_id}-v{max(versions)}" if versions else env_id


def _literal(text: str) -> Any:
    """JSON where it is JSON, else the text. Python's True, False and None too: a text would be true."""
    if text in WORDS:
        return WORDS[text]
    try:
        return json.loads(text)
    except ValueError:
        return text


def _check_arguments(name: str, creator: Callable[..., Any], arguments: Mapping[str, Any]) -> None:
    limit = arguments.get("max_episode_steps")
    if not (limit is None or type(limit) is int):
        raise UsageError(f"--set max_episode_steps={limit}: must be a whole number")
    accepted = keywords(creator)
    if accepted is None:
        return
    for key in arguments:
        if key not in (*accepted, *MAKE):
            hint, takes = nearest(key, (*accepted, *START_OPTIONS)), ", ".join(accepted) or "none"
            raise UsageError(f"--set {key}: gym:{name} takes no such argument{hint} (it takes {takes})")


def _renders(spec: EnvSpec, creator: Callable[..., Any]) -> bool:
    """Whether it takes `render_mode="rgb_array"`. A factory that names the parameter is trusted."""
    if "render_mode" in spec.kwargs:
        return False  # registered with a mode of its own
    accepted = keywords(creator)
    metadata = getattr(creator, "metadata", None)
    if isinstance(metadata, Mapping):
        modes = metadata.get("render_modes") or ()
        return "rgb_array" in modes and (accepted is None or "render_mode" in accepted)
    return accepted is not None and "render_mode" in accepted


def keywords(function: Callable[..., Any]) -> tuple[str, ...] | None:
    """The names that `function` takes by keyword; None where it takes any, or where nobody can tell."""
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):
        return None
    if any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters):
        return None
    return tuple(parameter.name for parameter in parameters if parameter.kind is not parameter.VAR_POSITIONAL)


def _line(exc: Exception) -> str:
    text = " ".join(str(exc).split())
    return f"{type(exc).__name__}: {text}" if text else type(exc).__name__
