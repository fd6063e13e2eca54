"""Which simulators are installed: the entry point group `rollout.envs`."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from importlib.metadata import EntryPoint, entry_points

from rollout.config import nearest
from rollout.envs.base import Simulator
from rollout.errors import UsageError

__all__ = [
    "families",
    "load_simulator",
    "missing_requirement",
    "resolve",
    "suite_names",
    "usable_simulator",
]


def families() -> Mapping[str, EntryPoint]:
    """The installed families, by name, sorted."""
    return {point.name: point for point in sorted(entry_points(group="rollout.envs"))}


def load_simulator(family: str) -> type[Simulator]:
    """The adapter class of `family`. Imports the adapter, never the simulator. Raises `UsageError`."""
    known = families()
    if family not in known:
        raise UsageError(
            f"unknown simulator family {family!r}{nearest(family, known)} (known: {', '.join(known)})"
        )
    try:
        adapter: type[Simulator] = known[family].load()
    except Exception as exc:  # somebody else's package
        raise UsageError(f"{family}: its adapter {known[family].value} cannot be imported: {exc!r}") from exc
    return adapter


def missing_requirement(adapter: type[Simulator]) -> str | None:
    """One line that says what to install, or None where everything that `adapter` requires is importable."""
    for requirement in adapter.requires:
        try:
            found = importlib.util.find_spec(requirement.module) is not None
        except ModuleNotFoundError:  # its parent package is missing
            found = False
        if not found:
            return f"{adapter.family}: {requirement.module} is not installed; run: {requirement.install}"
    return None


def usable_simulator(family: str) -> type[Simulator]:
    """`load_simulator`, where all that it requires is installed. Raises `UsageError`."""
    adapter = load_simulator(family)
    missing = missing_requirement(adapter)
    if missing is not None:
        raise UsageError(missing)
    return adapter


def suite_names(targets: Sequence[str]) -> list[tuple[str, str]]:
    """(family, suite name) of every suite that `targets` stand for, each once, in the order given."""
    pairs = [(family, name) for target in targets for family, names in (resolve(target),) for name in names]
    return list(dict.fromkeys(pairs))


def resolve(target: str) -> tuple[str, tuple[str, ...]]:
    """A target as `(family, suite names)`, e.g. `("libero", ("spatial",))`.

    Raises `UsageError` naming the nearest valid target.
    """
    family = target.partition(":")[0]
    if family not in families():
        adapters = _loadable()
        aliases = {alias: full for adapter in adapters for alias, full in adapter.aliases.items()}
        if target not in aliases:
            right = (
                target.replace(family, known, 1) for known in families()
            )  # where only the family is wrong
            raise UsageError(
                f"unknown target {target!r}{nearest(target, [*_targets(adapters), *right])} (see `rollout list`)"
            )
        family = aliases[target].partition(":")[0]
    adapter = load_simulator(family)
    name = adapter.aliases.get(target, target).partition(":")[2]
    if not name or (adapter.names and name not in adapter.names):
        near = nearest(target, _targets([adapter]))
        raise UsageError(f"{family} has no suite {name!r}{near} (see `rollout list {family}`)")
    return family, adapter.expand(name)


def _targets(adapters: Iterable[type[Simulator]]) -> list[str]:
    """Every target that has a name, aliases included."""
    return [
        target
        for adapter in adapters
        for target in (*(f"{adapter.family}:{name}" for name in adapter.names), *adapter.aliases)
    ]


def _loadable() -> list[type[Simulator]]:
    """Every adapter, but those whose own import fails."""
    adapters = []
    for family in families():
        with suppress(UsageError):
            adapters.append(load_simulator(family))
    return adapters
