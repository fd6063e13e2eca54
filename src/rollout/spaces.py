"""Gymnasium's spaces as data: the child describes what it has, the parent rebuilds it without the simulator.

`describe` runs in the child and gives msgspec structs; `rebuild` gives back the `gymnasium.Space` that they
describe.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeAlias, Union

import numpy as np
from msgspec import Struct

from rollout.values import Array, pack_array, plain_dtype, unpack_array

if TYPE_CHECKING:
    import gymnasium

__all__ = [
    "ArraySpace",
    "Box",
    "Choice",
    "Fields",
    "GraphSpace",
    "OneOf",
    "Repeated",
    "Space",
    "Text",
    "describe",
    "rebuild",
]


class _Description(Struct, frozen=True, tag_field="kind", tag=str.lower):
    pass


class Box(_Description, frozen=True):
    """`Box`: an array of `shape` and `dtype` within `[low, high]` (arrays of that shape, bounds inclusive).

    `unbounded` says which elements have no lower and which no upper limit where the dtype cannot say it: for
    integers, `low` and `high` are then the dtype's own limits, and Gymnasium samples them differently.
    """

    dtype: str
    shape: tuple[int, ...]
    low: Array
    high: Array
    unbounded: tuple[Array, Array] | None = None  # bool, of `shape`

    def __post_init__(self) -> None:
        _check(self.dtype, self.shape, self.low, self.high, *(self.unbounded or ()))


class Choice(_Description, frozen=True):
    """`Discrete` (shape `()`), `MultiDiscrete` and `MultiBinary`: integers in `[start, start + n)` each.

    `n` and `start` are int64, or uint64 where `dtype` is.
    """

    dtype: str
    shape: tuple[int, ...]
    n: Array
    start: Array
    binary: bool = False

    def __post_init__(self) -> None:
        _check(self.dtype, self.shape, self.n, self.start)


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

    node: Space
    edge: Space | None


class OneOf(_Description, frozen=True):
    """`OneOf`: an index and an element of the space at that index."""

    spaces: tuple[Space, ...]


ArraySpace: TypeAlias = Box | Choice
Space: TypeAlias = Union[Box, Choice, Text, Fields, Repeated, GraphSpace, OneOf]  # noqa: UP007


def _check(dtype: str, shape: tuple[int, ...], *arrays: Array) -> None:
    """Raise an error that decoding reports where a description that was received contradicts itself."""
    plain_dtype(dtype)
    for array in arrays:
        if unpack_array(array).shape != shape:
            raise ValueError(f"bounds of shape {array.shape} for a space of shape {shape}")


def describe(space: gymnasium.Space[Any]) -> Space:  # noqa: PLR0911
    """Describe `space`. Raises `TypeError` where it is none of Gymnasium's spaces, nor a subclass of one."""
    from gymnasium import spaces

    match space:
        case spaces.Box():
            low, high = pack_array(space.low), pack_array(space.high)
            return Box(space.dtype.str, space.shape, low, high, _unbounded(space))
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
            edge = None if space.edge_space is None else describe(space.edge_space)
            return GraphSpace(describe(space.node_space), edge)
        case spaces.OneOf():
            return OneOf(tuple(map(describe, space.spaces)))
        case _:
            raise TypeError(f"{type(space).__name__} is not one of Gymnasium's spaces")


def rebuild(space: Space) -> gymnasium.Space[Any]:  # noqa: PLR0911
    """The `gymnasium.Space` that `space` describes (imports gymnasium).

    Equal to the original, but for `Dict` keys, which are strings here, and for `MultiBinary((k,))` and
    `MultiDiscrete` of shape `()`, which become `MultiBinary(k)` and `Discrete`.
    """
    from gymnasium import spaces

    match space:
        case Box():
            return _rebuild_box(space)
        case Choice(binary=True):
            return spaces.MultiBinary(space.shape[0] if len(space.shape) == 1 else space.shape)
        case Choice(shape=()):
            n, start = int(unpack_array(space.n)), int(unpack_array(space.start))
            return spaces.Discrete(n, start=start, dtype=np.dtype(space.dtype))
        case Choice():
            nvec, starts = unpack_array(space.n), unpack_array(space.start)
            return spaces.MultiDiscrete(nvec, dtype=np.dtype(space.dtype), start=starts)
        case Text():
            return spaces.Text(space.max_length, min_length=space.min_length, charset=space.charset)
        case Fields(names=None):
            return spaces.Tuple(tuple(map(rebuild, space.spaces)))
        case Fields():
            # As pairs: Gymnasium sorts the keys of a plain dict.
            return spaces.Dict(list(zip(space.names or (), map(rebuild, space.spaces), strict=True)))
        case Repeated():
            return spaces.Sequence(rebuild(space.space), stack=space.stack)
        case GraphSpace():
            edge = None if space.edge is None else rebuild(space.edge)
            return spaces.Graph(rebuild(space.node), edge)
        case OneOf():
            return spaces.OneOf(tuple(map(rebuild, space.spaces)))


def _rebuild_box(space: Box) -> gymnasium.spaces.Box:
    import gymnasium

    low, high = unpack_array(space.low), unpack_array(space.high)
    box = gymnasium.spaces.Box(low, high, space.shape, np.dtype(space.dtype))
    if space.unbounded is not None:
        below, above = map(unpack_array, space.unbounded)
        box.bounded_below, box.bounded_above = ~below, ~above
    return box


def _unbounded(space: gymnasium.spaces.Box) -> tuple[Array, Array] | None:
    if space.dtype.kind == "f" or space.is_bounded():
        return None
    return pack_array(~space.bounded_below), pack_array(~space.bounded_above)


def _choice(dtype: Any, n: np.ndarray, start: np.ndarray, *, binary: bool = False) -> Choice:
    dtype = np.dtype(dtype)
    wide = np.uint64 if dtype.kind == "u" and dtype.itemsize == 8 else np.int64
    return Choice(dtype.str, n.shape, pack_array(n.astype(wide)), pack_array(start.astype(wide)), binary)
