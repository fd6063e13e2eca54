"""LeRobot's observation keys for any Gymnasium observation space.

From a `Dict` space:

| field | key |
|---|---|
| `pixels`, an image | `observation.images.image` |
| `pixels`, a `Dict` of images | `observation.images.<camera>`, one each |
| `agent_pos` | `observation.state` |
| `environment_state` | `observation.environment_state` |
| the first `Text` of `task`, `instruction`, `language` | `task` |
| any other `k`, an image | `observation.images.k` |
| any other `k` | `observation.k` |

Any other space: `observation.images.image` for an image, `observation.state` otherwise. An image is a uint8
`Box` of shape (height, width, 1, 3 or 4). Everything has its space's dtype and container, nested ones stay
nested; only `agent_pos` and `environment_state` become float32 where they are floats, as LeRobot has them.

Arrays are held to what their space declares, within `Dict` and `Tuple` too: another dtype is converted where that
loses nothing but precision, else it is an error. An episode may have a size of its own (other than declared, of as
many axes), but must keep it. What a `Dict` does not declare is left out.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeAlias

import numpy as np

from rollout.envs.observations import ENVIRONMENT_STATE, STATE, image_key
from rollout.envs.remarks import remark
from rollout.errors import UsageError
from rollout.types import Observation

if TYPE_CHECKING:
    import gymnasium

__all__ = ["Field", "observation_fields", "to_observation"]

TEXTS: Final = ("task", "instruction", "language")
LEROBOT: Final = {"agent_pos": STATE, "environment_state": ENVIRONMENT_STATE}


Reader: TypeAlias = "Callable[[], Callable[[Any], Any]]"
"""Made anew for each episode: the value as its space has it, sharing no memory with the environment."""


class Field(NamedTuple):
    """One observation key: where its value is in the environment's observation, and what it is."""

    key: str
    path: tuple[Any, ...]  # the names of `Dict` fields, outermost first; empty for the whole observation
    space: gymnasium.Space[Any]  # of what is delivered
    reader: Reader


def observation_fields(space: gymnasium.Space[Any]) -> tuple[Field, ...]:
    """The keys of an observation space. Raises `UsageError` where two fields would have the same one."""
    from gymnasium import spaces

    if not isinstance(space, spaces.Dict):
        return (_field(image_key("image") if _is_image(space) else STATE, (), space),)
    text = next((name for name in TEXTS if isinstance(space.spaces.get(name), spaces.Text)), None)
    fields: dict[str, Field] = {}
    for name, part in space.spaces.items():
        for field in [_field("task", (name,), part)] if name == text else _fields(name, part):
            if field.key in fields:
                names = f"{_dotted(fields[field.key].path)!r} and {_dotted(field.path)!r}"
                raise UsageError(f"the observation fields {names} would both be {field.key!r}: rename one")
            fields[field.key] = field
    return tuple(fields.values())


def to_observation(fields: Sequence[Field]) -> Callable[[Any], Observation]:
    """Makes one episode's observations of `fields` out of an environment's: as copies, since it may write into its
    own later.

    What it returns raises `ValueError` where a field is missing, or an array is not what its space declares.
    """
    if len(fields) == 1 and not fields[0].path:
        key, read = fields[0].key, fields[0].reader()
        return lambda seen: {key: read(seen)}  # half of the time that the general way takes
    parts = [(field.key, field.path, field.reader()) for field in fields]

    def observe(seen: Any) -> Observation:
        return {key: read(_at(path, seen)) for key, path, read in parts}

    return observe


def _at(path: tuple[Any, ...], seen: Any) -> Any:
    value = seen
    for name in path:
        value = _item(value, name, path)
    return value


def _item(value: Any, name: Any, path: tuple[Any, ...]) -> Any:
    try:
        return value[name]
    except (KeyError, TypeError, IndexError) as exc:
        raise ValueError(f"the observation has no {_dotted(path)!r}, which its space declares") from exc


def _fields(name: Any, space: gymnasium.Space[Any]) -> list[Field]:
    from gymnasium import spaces

    if name == "pixels" and _is_image(space):
        return [_field(image_key("image"), (name,), space)]
    if name == "pixels" and isinstance(space, spaces.Dict) and all(map(_is_image, space.spaces.values())):
        return [_field(image_key(camera), (name, camera), part) for camera, part in space.spaces.items()]
    if name in LEROBOT and isinstance(space, spaces.Box) and space.dtype.kind == "f":
        return [_field(LEROBOT[name], (name,), _float32(space))]
    if name in LEROBOT:
        return [_field(LEROBOT[name], (name,), space)]
    return [_field(image_key(name) if _is_image(space) else f"observation.{name}", (name,), space)]


def _field(key: str, path: tuple[Any, ...], space: gymnasium.Space[Any]) -> Field:
    return Field(key, path, space, _reader(path, space))


def _is_image(space: gymnasium.Space[Any]) -> bool:
    shape = space.shape or ()
    return space.dtype == np.uint8 and len(shape) == 3 and shape[2] in (1, 3, 4) and hasattr(space, "low")


def _float32(space: gymnasium.spaces.Box) -> gymnasium.spaces.Box:
    import gymnasium

    with np.errstate(all="ignore"):  # the largest float64 becomes infinity
        low, high = space.low.astype(np.float32), space.high.astype(np.float32)
    return gymnasium.spaces.Box(low, high, space.shape, np.float32)


def _reader(path: tuple[Any, ...], space: gymnasium.Space[Any]) -> Reader:
    from gymnasium import spaces

    what = f"the observation's {_dotted(path)!r}" if path else "the observation"
    match space:
        case spaces.Box() | spaces.MultiBinary() | spaces.MultiDiscrete():
            return _arrays(what, space.shape, np.dtype(space.dtype))
        case spaces.Discrete():
            return lambda: partial(_number, dtype=np.dtype(space.dtype), what=what)
        case spaces.Dict():
            return _dicts(path, {name: _reader((*path, name), part) for name, part in space.spaces.items()})
        case spaces.Tuple():
            return _tuples(what, [_reader((*path, index), part) for index, part in enumerate(space.spaces)])
        case _:
            return lambda: _copy


def _dicts(path: tuple[Any, ...], parts: Mapping[Any, Reader]) -> Reader:
    def reader() -> Callable[[Any], dict[Any, Any]]:
        reads = [(name, (*path, name), part()) for name, part in parts.items()]
        return lambda value: {name: read(_item(value, name, at)) for name, at, read in reads}

    return reader


def _tuples(what: str, parts: Sequence[Reader]) -> Reader:
    def reader() -> Callable[[Any], tuple[Any, ...]]:
        reads = [part() for part in parts]

        def read(value: Any) -> tuple[Any, ...]:
            if not (isinstance(value, tuple | list) or (isinstance(value, np.ndarray) and value.ndim)):
                kind = type(value).__name__
                raise ValueError(f"{what} is of type {kind} where its space declares a tuple of {len(reads)}")
            if len(value) != len(reads):
                raise ValueError(f"{what} has {len(value)} parts where its space declares {len(reads)}")
            return tuple(read(part) for read, part in zip(reads, value, strict=True))

        return read

    return reader


def _number(value: Any, dtype: np.dtype, what: str) -> Any:
    if type(value) is int or type(value) is dtype.type:
        return value
    array = _cast(value, dtype, what)
    if array.size != 1:
        raise ValueError(f"{what} has shape {array.shape} where its space declares one number")
    return array.reshape(())[()]


def _arrays(what: str, declared: tuple[int, ...], dtype: np.dtype) -> Reader:
    def reader() -> Callable[[Any], np.ndarray]:
        expected: tuple[int, ...] | None = None  # the shape of the episode's first

        def read(value: Any) -> np.ndarray:
            nonlocal expected
            same = type(value) is np.ndarray and value.dtype == dtype
            array = value if same else _cast(value, dtype, what)
            if array.shape != expected:
                if expected is not None or array.ndim != len(declared):
                    began = "" if expected in (None, declared) else f", and the episode began with {expected}"
                    raise ValueError(
                        f"{what} has shape {array.shape} where its space declares {declared}{began}"
                    )
                if array.shape != declared:
                    remark(
                        f"{what} has shape {array.shape} where its space declares {declared}: passed on as it is"
                    )
                expected = array.shape
            return array

        return read

    return reader


def _cast(value: Any, dtype: np.dtype, what: str) -> np.ndarray:
    """A new array of `dtype`: floats may lose precision, and nothing else may change. Raises `ValueError`."""
    try:
        given = np.asarray(value)
    except Exception as exc:  # a ragged list, an object's own code
        raise ValueError(f"{what} is no array but of type {type(value).__name__}") from exc
    if given.dtype.kind in "buif":
        with np.errstate(all="ignore"):  # what became another number is seen below
            array = given.astype(dtype, order="C")
            same = array == given if dtype.kind != "f" else np.isfinite(array) | ~np.isfinite(given)
        if same.all():
            return array
        if dtype.kind == "f":
            raise ValueError(f"{what} has the value {given[~same][0]}, which no {dtype} can hold")
    raise ValueError(f"{what} has dtype {given.dtype} where its space declares {dtype}")


def _copy(value: Any) -> Any:
    if isinstance(value, np.ndarray):
        return value.copy()
    if isinstance(value, Mapping):
        return {key: _copy(item) for key, item in value.items()}
    if isinstance(value, tuple) and hasattr(value, "_fields"):  # a GraphInstance
        return type(value)(*map(_copy, value))
    if isinstance(value, tuple | list):
        return type(value)(map(_copy, value))
    return value


def _dotted(path: tuple[Any, ...]) -> str:
    return ".".join(map(str, path))
