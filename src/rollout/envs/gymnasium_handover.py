"""Environments that only the user's script knows: how the parent hands their registrations to its workers.

Workers import nothing of the caller's `__main__`, so they lack what it registers (`gymnasium.register` under
`if __name__ == "__main__"`, or a closure as the entry point). A registration that JSON can tell travels as JSON, any
other one pickled. That is safe in this direction: workers run the user's code anyway. Nothing that a worker sends is
ever unpickled.
"""

from __future__ import annotations

import importlib
import pickle
import re
import sys
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from copy import copy
from typing import Any, Final, TypeAlias

from rollout.envs.gymnasium_registry import newest
from rollout.errors import UsageError

__all__ = ["Factory", "Target", "adopt", "hand_over", "named"]

Factory: TypeAlias = Callable[..., Any]
"""A class or a function that makes a Gymnasium environment."""

Target: TypeAlias = str | Factory

_REGISTRATION: Final = "gymnasium.envs.registration"
_ILLEGAL: Final = re.compile(r"[^\w:.-]+")  # in Gymnasium's ids


def named(targets: Target | Iterable[Target]) -> tuple[list[str], dict[str, Factory]]:
    """The names of `targets`, and by id the factories among them. Raises `UsageError` where two have one name."""
    names, factories = [], dict[str, Factory]()
    one = isinstance(targets, str) or callable(targets) or not isinstance(targets, Iterable)
    given: list[Any] = [targets] if one else list(targets)  # type: ignore[arg-type]
    for target in given:
        if isinstance(target, str):
            names.append(target)
            continue
        if not callable(target):
            kind = type(target).__name__
            raise UsageError(
                f"a target is a name, or a class or function that makes an environment, not of type {kind}"
            )
        env_id = _ILLEGAL.sub("", getattr(target, "__qualname__", type(target).__qualname__)) or "environment"
        if factories.setdefault(env_id, target) is not target:
            raise UsageError(
                f"two of the targets are called {env_id}: give their functions names of their own"
            )
        names.append(f"gym:{env_id}")
    return names, factories


def hand_over(suites: Iterable[tuple[str, str]], factories: Mapping[str, Factory]) -> dict[str, bytes]:
    """What workers need to know of environments that are registered here, and of `factories`.

    `suites` are (family, name) as targets have them; of `gym` that is `<id>` or `<module>:<id>`. Gymnasium is not
    imported for it: where it was not, nothing is registered. Raises `UsageError` where something cannot be sent.
    """
    registry: Mapping[str, Any] = getattr(sys.modules.get(_REGISTRATION), "registry", {})
    handed: dict[str, bytes] = {}
    for name in (name for family, name in suites if family == "gym"):
        known = newest(name, registry) in registry or ":" not in name
        prefix, env_id = ("", name) if known else name.split(":", 1)
        env_id = newest(env_id, registry)
        if env_id in registry:
            handed[f"{prefix}:{env_id}" if prefix else env_id] = _sent(env_id, registry[env_id])
    return handed | {env_id: _pickled(env_id, factory) for env_id, factory in factories.items()}


def adopt(registrations: Mapping[str, bytes]) -> None:
    """Register what `hand_over` gave, in a worker. Where a name has a module that registers its id, that one counts."""
    for name, sent in registrations.items():
        from gymnasium.envs.registration import EnvSpec, registry

        told = EnvSpec.from_json(sent.decode()) if sent.startswith(b"{") else pickle.loads(sent)
        spec = told if isinstance(told, EnvSpec) else EnvSpec(name, told, order_enforce=False)
        if spec.id == name:
            registry[name] = spec
            continue
        with suppress(Exception):  # told when the environment is looked for
            importlib.import_module(name.removesuffix(f":{spec.id}"))
        registry.setdefault(spec.id, spec)


def _sent(env_id: str, spec: Any) -> bytes:
    if not str(spec.entry_point).startswith("__main__:"):
        try:
            text: str = spec.to_json()
            if type(spec).from_json(text) == spec:  # JSON has no tuples
                return text.encode()
        except Exception:  # a callable, or an argument that JSON cannot tell
            pass
    return _pickled(env_id, _importable(spec))


def _importable(spec: Any) -> Any:
    """`spec` with the class or function in place of its name in `__main__`, which no worker can import."""
    module, _, name = str(spec.entry_point).partition(":")
    if module != "__main__":
        return spec
    found = copy(spec)
    found.entry_point = getattr(sys.modules[module], name, None)
    return found


def _pickled(env_id: str, what: Any) -> bytes:
    import cloudpickle  # a dependency of Gymnasium's

    try:
        data: bytes = cloudpickle.dumps(what)
    except Exception as exc:  # a lock, an open file
        raise UsageError(
            f"gym:{env_id}: it cannot be handed to the workers ({type(exc).__name__}: {exc}): register it in a module, "
            "and name that: gym:<module>:<id>"
        ) from exc
    return data
