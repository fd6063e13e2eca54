"""The recurrent state of a module: one row an episode, stacked for a forward and taken apart behind it.

A state is a tensor, or tuples, lists and dicts of tensors.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

__all__ = ["Memory", "row", "stacked"]


class Memory:
    """A session: what the module remembers of one episode."""

    __slots__ = ("state",)

    def __init__(self, state: Any) -> None:
        self.state = state


def stacked(states: Sequence[Any], device: torch.device, dtype: torch.dtype) -> Any:
    """States of B episodes with a new leading axis B, on `device`, floats in `dtype`."""

    def joined(*leaves: torch.Tensor) -> torch.Tensor:
        kind = dtype if leaves[0].is_floating_point() else leaves[0].dtype
        return torch.stack([leaf.to(device, kind) for leaf in leaves])

    return _map(joined, *states)


def row(states: Any, index: int) -> Any:
    """The state of one episode out of a batch: a copy, which keeps no batch alive and which no other forward alters."""
    return _map(lambda leaf: leaf[index].clone(), states)


def _map(function: Callable[..., Any], first: Any, *others: Any) -> Any:
    if isinstance(first, torch.Tensor):
        return function(first, *others)
    if isinstance(first, dict):
        return {key: _map(function, first[key], *(other[key] for other in others)) for key in first}
    if isinstance(first, tuple | list):
        found = [_map(function, *leaves) for leaves in zip(first, *others, strict=True)]
        if hasattr(first, "_fields"):  # a named tuple
            return type(first)(*found)
        return tuple(found) if isinstance(first, tuple) else found
    raise TypeError(f"a recurrent state has tensors, tuples, lists and dicts, not {type(first).__name__}")
