"""Actions as an environment expects them: fresh arrays and scalars of its action space's own types."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

if TYPE_CHECKING:
    import gymnasium

__all__ = ["Convert", "converter"]

Convert: TypeAlias = Callable[[Any], Any]


def converter(space: gymnasium.Space[Any]) -> Convert:  # noqa: PLR0911
    """A function that turns one action, as it came over the wire, into an element of `space`.

    It is made once, so that no step asks what kind of space it has. Arrays are always new: an environment may
    keep or change them. Nothing is clipped. The function raises `ValueError` where the action cannot be an
    element: a wrong shape, a fraction for an integer, an index that is out of range, a missing field.

    Raises `TypeError` where `space` is none of Gymnasium's.
    """
    from gymnasium import spaces

    match space:
        case spaces.Box() if space.dtype.kind == "f":
            return _floats(space.shape, space.dtype)
        case spaces.Box() | spaces.MultiDiscrete() | spaces.MultiBinary():
            return _integers(space.shape, space.dtype)
        case spaces.Discrete():
            return _discrete(int(space.start), int(space.n), space.dtype.type)
        case spaces.Text():
            return _text
        case spaces.Tuple():
            return _tuple([converter(part) for part in space.spaces])
        case spaces.Dict():
            return _dict({key: converter(part) for key, part in space.spaces.items()})
        case spaces.Sequence():
            return _stacked(space.feature_space) if space.stack else _each(converter(space.feature_space))
        case spaces.Graph():
            edge = None if space.edge_space is None else _stacked(space.edge_space)
            return _graph(_stacked(space.node_space), edge)
        case spaces.OneOf():
            return _one_of([converter(part) for part in space.spaces])
        case _:
            raise TypeError(f"{type(space).__name__} is not one of Gymnasium's spaces")


def _stacked(space: gymnasium.Space[Any]) -> Convert:
    """For any number of elements of `space`, stacked as `gymnasium.vector.utils.batch_space` does it."""
    from gymnasium import spaces

    match space:
        case spaces.Box() | spaces.Discrete() | spaces.MultiDiscrete() | spaces.MultiBinary():
            dtype = np.dtype(space.dtype)
            make = _floats if dtype.kind == "f" else _integers
            return make(space.shape or (), dtype, stacked=True)
        case spaces.Tuple():
            return _tuple([_stacked(part) for part in space.spaces])
        case spaces.Dict():
            return _dict({key: _stacked(part) for key, part in space.spaces.items()})
        case _:
            return _each(converter(space))


def _floats(shape: tuple[int, ...], dtype: np.dtype, *, stacked: bool = False) -> Convert:
    skip = int(stacked)

    def convert(action: Any) -> np.ndarray:
        array = np.array(action, dtype, order="C")
        if array.shape[skip:] != shape:
            raise _misshapen(array, shape)
        return array

    return convert


def _integers(shape: tuple[int, ...], dtype: np.dtype, *, stacked: bool = False) -> Convert:
    skip = int(stacked)

    def convert(action: Any) -> np.ndarray:
        given = np.asarray(action)
        if given.shape[skip:] != shape:
            raise _misshapen(given, shape)
        if given.dtype == dtype:
            return given.copy()
        with np.errstate(invalid="ignore"):  # a NaN becomes some integer, which then differs from it
            array = given.astype(dtype, order="C")
        if (array != given).any():
            raise ValueError(f"the action {given.tolist()} is not made of {dtype} values")
        return array

    return convert


def _discrete(start: int, n: int, scalar: Callable[[int], Any]) -> Convert:
    stop = start + n
    # One look-up, 0.1 us in place of 0.6: whatever equals an integer (np.int64, 1.0) has its hash too.
    known = {value: scalar(value) for value in range(start, stop)} if n <= 4096 else {}

    def convert(action: Any) -> Any:
        try:
            return known[action]
        except (KeyError, TypeError):  # an array, or no such action
            return checked(action)

    def checked(action: Any) -> Any:
        value = _item(action)
        if not start <= value < stop or value != int(value):  # in this order: NaN and infinity have no int()
            raise ValueError(f"the action {value!r} is none of the {n} integers from {start} to {stop - 1}")
        return scalar(int(value))

    return convert


def _text(action: Any) -> str:
    if not isinstance(action, str):
        raise ValueError(f"an action of type {type(action).__name__} where a text is expected")
    return str(action)


def _tuple(parts: list[Convert]) -> Convert:
    def convert(action: Any) -> tuple[Any, ...]:
        if len(action) != len(parts):
            raise ValueError(f"an action of {len(action)} parts where {len(parts)} are expected")
        return tuple(part(value) for part, value in zip(parts, action, strict=True))

    return convert


def _dict(parts: dict[Any, Convert]) -> Convert:
    names = {key: str(key) for key in parts}  # keys travel as strings

    def convert(action: Any) -> dict[Any, Any]:
        given = {str(key): value for key, value in action.items()}
        if given.keys() != set(names.values()):
            raise ValueError(f"an action with the fields {sorted(given)}, not {sorted(names.values())}")
        return {key: part(given[names[key]]) for key, part in parts.items()}

    return convert


def _each(part: Convert) -> Convert:
    return lambda action: tuple(map(part, action))


def _graph(node: Convert, edge: Convert | None) -> Convert:
    from gymnasium.spaces import GraphInstance

    def convert(action: Any) -> GraphInstance:
        nodes, edges, links = action
        return GraphInstance(
            nodes=node(nodes),
            edges=None if edges is None or edge is None else edge(edges),
            edge_links=None if links is None else np.array(links),
        )

    return convert


def _one_of(parts: list[Convert]) -> Convert:
    choose = _discrete(0, len(parts), np.int64)

    def convert(action: Any) -> tuple[Any, Any]:
        index, value = action
        index = choose(index)
        return index, parts[index](value)

    return convert


def _item(action: Any) -> Any:
    if isinstance(action, np.ndarray | np.generic):
        if action.size != 1:
            raise ValueError(f"an action of shape {action.shape} where one number is expected")
        return action.item()
    if isinstance(action, int | float):
        return action
    raise ValueError(f"an action of type {type(action).__name__} where a number is expected")


def _misshapen(array: np.ndarray, shape: tuple[int, ...]) -> ValueError:
    return ValueError(f"an action of shape {array.shape} for a space of shape {shape}")
