"""Which members of a simulator a class lacks, or has of a wrong type."""

from __future__ import annotations

from typing import Any, ClassVar, Final, Literal, get_args, get_origin, get_type_hints

from rollout.envs.base import Simulator

__all__ = ["shortcomings"]

METHODS: Final = ("expand", "describe", "build", "reset", "step", "render", "close")


def shortcomings(adapter: type[Simulator]) -> list[str]:
    """One line for each member that is missing or wrong."""
    methods = [f"`{name}` is no method" for name in METHODS if not callable(getattr(adapter, name, None))]
    variables = [_complaint(adapter, name, kind) for name, kind in _class_variables().items()]
    return methods + [text for text in variables if text is not None]


def _class_variables() -> dict[str, Any]:
    hints = get_type_hints(Simulator)
    return {name: get_args(hint)[0] for name, hint in hints.items() if get_origin(hint) is ClassVar}


def _complaint(adapter: type[Simulator], name: str, kind: Any) -> str | None:
    if not hasattr(adapter, name):
        return f"`{name}` is missing: {kind}"
    value = getattr(adapter, name)
    if get_origin(kind) is Literal:
        right = value in get_args(kind)
    else:
        plain = get_origin(kind) or kind
        right = isinstance(value, (int, float) if plain is float else plain)
    return None if right else f"`{name}` is {value!r}, and should be {kind}"
