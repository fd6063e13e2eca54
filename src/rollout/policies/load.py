"""From what a user names or hands over to a `Policy`."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from importlib.metadata import EntryPoint, entry_points
from typing import Any

from rollout.config import EvalConfig, nearest
from rollout.errors import UsageError
from rollout.policies.base import Opener, Policy, PolicySpec, Request, Session
from rollout.types import EpisodeSpec, TaskInfo

__all__ = ["as_policy", "is_opened", "known_policies", "load_policy", "policy_form", "policy_name"]


def known_policies() -> dict[str, EntryPoint]:
    """The registered policies by name: the entry point group `rollout.policies`."""
    return {point.name: point for point in sorted(entry_points(group="rollout.policies"))}


def policy_form(point: EntryPoint) -> str:
    """How a registered policy is named: as it is, or "name:WHAT" where it takes a locator."""
    try:
        found = point.load()
    except ImportError:  # a package that is half installed must not take the others' names away
        return point.name
    return f"{point.name}:{found.locator}" if _opens(found) else point.name


def load_policy(spec: str, arguments: dict[str, Any]) -> Any:
    """Make the object that `spec` names: a registered name, or `package.module:factory` called with `arguments`.

    Raises `UsageError` with one line where the spec or its arguments are wrong.
    """
    known = known_policies()
    if spec in known:
        made = known[spec].load()
        if _opens(made):
            raise UsageError(f"policy {spec!r}: say which one, as {spec}:{made.locator}")
        return _make(made, spec, arguments)
    module_name, colon, attribute = spec.partition(":")
    if not colon or not attribute or not module_name:
        raise UsageError(
            f"unknown policy {spec!r}{nearest(spec, known)} "
            f"(known: {', '.join(map(policy_form, known.values()))}, or package.module:factory)"
        )
    return _make(_find(module_name, attribute, spec), spec, arguments)


def _find(module_name: str, attribute: str, spec: str) -> Any:
    try:
        found = importlib.import_module(module_name)
    except ModuleNotFoundError as exc:
        if exc.name is not None and (module_name + ".").startswith(exc.name + "."):
            hint = nearest(module_name, known_policies())
            raise UsageError(f"policy {spec!r}: there is no module {exc.name!r} on the path{hint}") from exc
        raise UsageError(
            f"policy {spec!r}: {module_name} needs {exc.name!r}, which is not installed"
        ) from exc
    for part in attribute.split("."):
        if not hasattr(found, part):
            raise UsageError(
                f"policy {spec!r}: {module_name} has no {attribute!r}{nearest(part, dir(found))}"
            )
        found = getattr(found, part)
    return found


def _make(factory: Any, spec: str, arguments: dict[str, Any]) -> Any:
    """Call a factory; an object that is a policy already is used as it is."""
    if not isinstance(factory, type) and (hasattr(factory, "infer") or _is_module(factory)):
        if arguments:
            raise UsageError(f"policy {spec!r} is an object, not a factory: --policy-arg does not apply")
        return factory
    try:
        return factory(**arguments)
    except TypeError as exc:
        if (
            exc.__traceback__ is not None and exc.__traceback__.tb_next is None
        ):  # the call itself, not its body
            raise UsageError(f"policy {spec!r}: {exc} (see --policy-arg)") from exc
        raise
    except (OSError, ValueError) as exc:  # a missing or unreadable checkpoint
        raise UsageError(f"policy {spec!r}: {type(exc).__name__}: {exc}") from exc


def policy_name(policy: Any) -> str:
    """What stands in the record: the spec as given, or the class of an object."""
    if isinstance(policy, str):
        return policy
    return f"{type(policy).__module__}:{type(policy).__qualname__}"


@contextmanager
def as_policy(policy: Any, config: EvalConfig) -> Iterator[Policy]:
    """Adapt a spec, a `torch.nn.Module` or any object with `infer`. A module is put into evaluation mode meanwhile.

    Raises `UsageError` for anything else.
    """
    opener, locator = _opener(policy) if isinstance(policy, str) else (None, "")
    if opener is not None:
        with _opened(opener, policy, locator, config) as made:
            yield made
        return
    made = load_policy(policy, config.policy_args) if isinstance(policy, str) else policy
    if _is_module(made):
        from rollout.policies.torch import TorchPolicy

        with TorchPolicy.evaluating(made, config) as adapted:
            yield adapted
    elif hasattr(made, "infer"):
        yield made if hasattr(made, "spec") and hasattr(made, "open_session") else _Completed(made)
    else:
        raise UsageError(
            f"{policy_name(made)} is not a policy: it is no torch.nn.Module and has no infer(requests)"
        )


def is_opened(spec: str) -> bool:
    """Whether `spec` names a policy that something registered opens, e.g. a checkpoint or a server."""
    return _opener(spec)[0] is not None


def _opener(spec: str) -> tuple[Opener | None, str]:
    """Who serves `name:locator`, and the locator; None where `spec` is of another form."""
    name, _, locator = spec.partition(":")
    point = known_policies().get(name)
    found = point.load() if point is not None and locator else None
    return (found, locator) if _opens(found) else (None, "")


def _opens(found: Any) -> bool:
    return hasattr(found, "opened")


def _opened(opener: Opener, spec: str, locator: str, config: EvalConfig) -> AbstractContextManager[Policy]:
    try:
        return opener.opened(locator, config, **config.policy_args)
    except TypeError as exc:  # a generator function's arguments are checked when it is called
        raise UsageError(f"policy {spec!r}: {exc} (see --policy-arg)") from exc


def _is_module(policy: Any) -> bool:
    torch = sys.modules.get("torch")  # a module cannot exist where torch was never imported
    return torch is not None and isinstance(policy, torch.nn.Module)


class _Completed:
    """An object with `infer`, with what it left out filled in: reads everything, one action at a time, no session."""

    def __init__(self, policy: Any) -> None:
        self._policy = policy
        self.spec: PolicySpec = getattr(policy, "spec", PolicySpec())

    def open_session(self, episode: EpisodeSpec, task: TaskInfo) -> Session:
        """The object's own session, or none."""
        opener = getattr(self._policy, "open_session", None)
        return None if opener is None else opener(episode, task)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._policy, name)  # what else a policy may have, see `Policy`

    def infer(self, requests: Sequence[Request]) -> Sequence[Any]:
        """The object's own."""
        chunks: Sequence[Any] = self._policy.infer(requests)
        return chunks
