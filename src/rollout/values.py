"""Arrays and nested values as data: the leaves of every message and of every stored action.

A `Value` is what Gymnasium's spaces can produce, closed under nesting, with dtypes, shapes and container types kept.
Arrays travel as `(dtype, shape, bytes)` and are decoded as views on the received buffer, without a copy.
"""

from __future__ import annotations

from math import prod
from typing import Any, TypeAlias, Union

import numpy as np
from msgspec import Struct

from rollout.errors import ProtocolError

__all__ = ["Array", "Graph", "Items", "Mapping", "Scalar", "Value", "pack", "pack_array", "unpack", "unpack_array"]


class Array(Struct, frozen=True, array_like=True, tag="a"):
    """An n-dimensional array: NumPy dtype string, shape, and C-ordered bytes."""

    dtype: str
    shape: tuple[int, ...]
    data: memoryview


class Scalar(Struct, frozen=True, array_like=True, tag="s"):
    """A NumPy scalar (`np.generic`), kept apart from a 0-d array."""

    dtype: str
    data: bytes


class Items(Struct, frozen=True, array_like=True, tag="i"):
    """A tuple, or a list where `is_list`."""

    items: tuple[Value, ...]
    is_list: bool = False


class Mapping(Struct, frozen=True, array_like=True, tag="m"):
    """A dict with string keys."""

    items: dict[str, Value]


class Graph(Struct, frozen=True, array_like=True, tag="g"):
    """A `gymnasium.spaces.GraphInstance`."""

    nodes: Array
    edges: Array | None
    edge_links: Array | None


Value: TypeAlias = Union[Array, Scalar, Items, Mapping, Graph, str, int, float, bool, None]  # noqa: UP007


def pack_array(array: np.ndarray) -> Array:
    """Describe `array` without copying it, unless it is not C-ordered. Raises `TypeError` for object dtypes."""
    if array.dtype.hasobject:
        raise TypeError(f"an array of dtype {array.dtype} holds Python objects and cannot be sent")
    contiguous = array if array.flags.c_contiguous else np.ascontiguousarray(array)
    # A memoryview cannot express every dtype (float16, bool, datetime): bytes can.
    return Array(array.dtype.str, array.shape, contiguous.reshape(-1).view(np.uint8).data)


def unpack_array(array: Array) -> np.ndarray:
    """Rebuild the array as a view on the received buffer (copied only where the view would be unaligned).

    Raises `ProtocolError` where dtype, shape and byte count do not fit together.
    """
    try:
        dtype = np.dtype(array.dtype)
        if dtype.hasobject or min(array.shape, default=0) < 0 or prod(array.shape) * dtype.itemsize != len(array.data):
            raise ValueError("dtype, shape and size do not fit")
        view = np.ndarray(array.shape, dtype, array.data)
    except (TypeError, ValueError) as exc:
        raise ProtocolError(f"bad array {array.dtype!r} {array.shape} of {len(array.data)} bytes: {exc}") from exc
    # Unaligned arrays are legal but slow, and some C extensions refuse them.
    return view if view.flags.aligned else view.copy()


def pack(value: Any) -> Value:  # noqa: PLR0911
    """Turn an observation or action leaf into a `Value`. Raises `TypeError` for anything else, naming its type."""
    if isinstance(value, np.ndarray):
        return pack_array(value)
    if isinstance(value, np.generic):
        return Scalar(value.dtype.str, value.tobytes())
    if value is None or isinstance(value, str | bool | int | float):
        return value
    if hasattr(value, "edge_links") and hasattr(value, "nodes"):  # a GraphInstance, itself a tuple
        edges, links = value.edges, value.edge_links
        return Graph(
            pack_array(value.nodes),
            None if edges is None else pack_array(edges),
            None if links is None else pack_array(links),
        )
    if isinstance(value, tuple | list):
        return Items(tuple(pack(item) for item in value), isinstance(value, list))
    if isinstance(value, dict):
        return Mapping({str(key): pack(item) for key, item in value.items()})
    raise TypeError(f"a value of type {type(value).__name__} cannot be sent")


def unpack(value: Value) -> Any:
    """The inverse of `pack`: equal values, dtypes, shapes and container types."""
    match value:
        case Array():
            return unpack_array(value)
        case Scalar():
            return np.frombuffer(value.data, np.dtype(value.dtype))[0]
        case Items():
            items = (unpack(item) for item in value.items)
            return list(items) if value.is_list else tuple(items)
        case Mapping():
            return {key: unpack(item) for key, item in value.items.items()}
        case Graph():
            from gymnasium.spaces import GraphInstance

            edges, links = value.edges, value.edge_links
            return GraphInstance(
                nodes=unpack_array(value.nodes),
                edges=None if edges is None else unpack_array(edges),
                edge_links=None if links is None else unpack_array(links),
            )
        case _:
            return value
