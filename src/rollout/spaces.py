"""Gymnasium's spaces as data: the child describes what it has, the parent rebuilds it without the simulator.

`describe` runs in the child and gives msgspec structs; `rebuild` gives back the `gymnasium.Space` that they describe.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeAlias, Union

import numpy as np
from msgspec import Struct

from rollout.values import Array, pack_array, unpack_array

if TYPE_CHECKING:
    import gymnasium

__all__ = ["ArraySpace", "Box", "Choice", "Fields", "GraphSpace", "OneOf", "Repeated", "Space", "Text", "describe",
           "rebuild"]


class _Description(Struct, frozen=True, tag_field="kind", tag=str.lower):
    pass


class Box(_Description, frozen=True):
    """`Box`: an array of `shape` and `dtype` within `[low, high]` (arrays of the same shape, bounds inclusive)."""

    dtype: str
    shape: tuple[int, ...]
    low: Array
    high: Array


class Choice(_Description, frozen=True):
    """`Discrete` (shape `()`), `MultiDiscrete` and `MultiBinary`: integers in `[start, start + n)`, elementwise."""

    dtype: str
    shape: tuple[int, ...]
    n: Array
    start: Array
    binary: bool = False


class Text(_Description, frozen=True):
    """`Text`: a string of `min_length` to `max_length` characters out of `charset`."""

    min_length: int
    max_length: int
    charset: str


class Fields(_Description, frozen=True):
    """`Dict` (with `names`) or `Tuple` (without)."""

    spaces: tuple[Space, ...]
    names: tuple[str, ...] | None = None


class Repeated(_Description, frozen=True):
    """`Sequence`: any number of elements of one space, as a tuple, or stacked where `stack`."""

    space: Space
    stack: bool


class GraphSpace(_Description, frozen=True):
    """`Graph`: node and edge features."""

    node: Box | Choice
    edge: Box | Choice | None


class OneOf(_Description, frozen=True):
    """`OneOf`: an index and an element of the space at that index."""

    spaces: tuple[Space, ...]


ArraySpace: TypeAlias = Box | Choice
Space: TypeAlias = Union[Box, Choice, Text, Fields, Repeated, GraphSpace, OneOf]  # noqa: UP007


def describe(space: gymnasium.Space[Any]) -> Space:  # noqa: PLR0911
    """Describe `space`. Raises `TypeError` where it is not one of Gymnasium's own spaces."""
    from gymnasium import spaces

    match space:
        case spaces.Box():
            return Box(space.dtype.str, space.shape, pack_array(space.low), pack_array(space.high))
        case spaces.Discrete():
            return _choice(space.dtype, np.asarray(space.n), np.asarray(space.start))
        case spaces.MultiDiscrete():
            return _choice(space.dtype, space.nvec, space.start)
        case spaces.MultiBinary():
            return _choice(space.dtype, np.full(space.shape, 2), np.zeros(space.shape), binary=True)
        case spaces.Text():
            return Text(space.min_length, space.max_length, "".join(space.character_list))
        case spaces.Dict():
            return Fields(tuple(map(describe, space.spaces.values())), tuple(map(str, space.spaces)))
        case spaces.Tuple():
            return Fields(tuple(map(describe, space.spaces)))
        case spaces.Sequence():
            return Repeated(describe(space.feature_space), space.stack)
        case spaces.Graph():
            edge = None if space.edge_space is None else _array_space(space.edge_space)
            return GraphSpace(_array_space(space.node_space), edge)
        case spaces.OneOf():
            return OneOf(tuple(map(describe, space.spaces)))
        case _:
            raise TypeError(f"{type(space).__name__} is not one of Gymnasium's spaces")


def rebuild(space: Space) -> gymnasium.Space[Any]:  # noqa: PLR0911
    """The `gymnasium.Space` that `space` describes (imports gymnasium)."""
    from gymnasium import spaces

    match space:
        case Box():
            low, high = unpack_array(space.low), unpack_array(space.high)
            return spaces.Box(low, high, space.shape, np.dtype(space.dtype).type)
        case Choice(binary=True):
            return spaces.MultiBinary(space.shape)
        case Choice(shape=()):
            dtype = np.dtype(space.dtype).type
            return spaces.Discrete(int(unpack_array(space.n)), start=int(unpack_array(space.start)), dtype=dtype)
        case Choice():
            dtype = np.dtype(space.dtype).type
            return spaces.MultiDiscrete(unpack_array(space.n), dtype=dtype, start=unpack_array(space.start))
        case Text():
            return spaces.Text(space.max_length, min_length=space.min_length, charset=space.charset)
        case Fields(names=None):
            return spaces.Tuple(tuple(map(rebuild, space.spaces)))
        case Fields():
            return spaces.Dict(dict(zip(space.names or (), map(rebuild, space.spaces), strict=True)))
        case Repeated():
            return spaces.Sequence(rebuild(space.space), stack=space.stack)
        case GraphSpace():
            edge = None if space.edge is None else rebuild(space.edge)
            return spaces.Graph(rebuild(space.node), edge)
        case OneOf():
            return spaces.OneOf(tuple(map(rebuild, space.spaces)))


def _array_space(space: gymnasium.Space[Any]) -> ArraySpace:
    described = describe(space)
    assert isinstance(described, Box | Choice)  # Gymnasium's Graph accepts nothing else
    return described


def _choice(dtype: Any, n: np.ndarray, start: np.ndarray, *, binary: bool = False) -> Choice:
    int64 = np.int64
    return Choice(np.dtype(dtype).str, n.shape, pack_array(n.astype(int64)), pack_array(start.astype(int64)), binary)
