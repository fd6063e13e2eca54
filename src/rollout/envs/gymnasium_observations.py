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
`Box` of shape (height, width, 1, 3 or 4). Everything keeps its own dtype and container, nested ones stay
nested; only `agent_pos` and `environment_state` become float32 where they are floats, as LeRobot has them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np

from rollout.envs.observations import ENVIRONMENT_STATE, STATE, image_key
from rollout.errors import UsageError
from rollout.types import Observation

if TYPE_CHECKING:
    import gymnasium

__all__ = ["Field", "observation_fields", "to_observation"]

TEXTS: Final = ("task", "instruction", "language")
LEROBOT: Final = {"agent_pos": STATE, "environment_state": ENVIRONMENT_STATE}


class Field(NamedTuple):
    """One observation key: where its value is in the environment's observation, and what it is."""

    key: str
    path: tuple[Any, ...]  # the names of `Dict` fields, outermost first; empty for the whole observation
    space: gymnasium.Space[Any]  # of what is delivered
    copied: Callable[[Any], Any]  # the value as its space has it, sharing no memory with the environment


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
    """Makes observations of `fields` out of an environment's: as copies, since it may write into its own later.

    What it returns raises `ValueError` where a field is missing.
    """
    if len(fields) == 1 and not fields[0].path:
        key, copied = fields[0].key, fields[0].copied
        return lambda seen: {key: copied(seen)}  # half of the time that the general way takes

    def observe(seen: Any) -> Observation:
        return {key: copied(_at(path, seen)) for key, path, _, copied in fields}

    return observe


def _at(path: tuple[Any, ...], seen: Any) -> Any:
    value = seen
    for name in path:
        try:
            value = value[name]
        except (KeyError, TypeError, IndexError) as exc:
            missing = _dotted(path)
            raise ValueError(f"the observation has no {missing!r}, which its space declares") from exc
    return value


def _fields(name: Any, space: gymnasium.Space[Any]) -> list[Field]:
    from gymnasium import spaces

    if name == "pixels" and _is_image(space):
        return [_field(image_key("image"), (name,), space)]
    if name == "pixels" and isinstance(space, spaces.Dict) and all(map(_is_image, space.spaces.values())):
        return [_field(image_key(camera), (name, camera), part) for camera, part in space.spaces.items()]
    if name in LEROBOT and isinstance(space, spaces.Box) and space.dtype.kind == "f":
        return [Field(LEROBOT[name], (name,), _float32(space), lambda value: np.array(value, np.float32))]
    if name in LEROBOT:
        return [_field(LEROBOT[name], (name,), space)]
    return [_field(image_key(name) if _is_image(space) else f"observation.{name}", (name,), space)]


def _field(key: str, path: tuple[Any, ...], space: gymnasium.Space[Any]) -> Field:
    from gymnasium import spaces

    arrays = isinstance(space, spaces.Box | spaces.MultiBinary | spaces.MultiDiscrete)
    return Field(key, path, space, _array(np.dtype(space.dtype)) if arrays else _copy)


def _is_image(space: gymnasium.Space[Any]) -> bool:
    shape = space.shape or ()
    return space.dtype == np.uint8 and len(shape) == 3 and shape[2] in (1, 3, 4) and hasattr(space, "low")


def _float32(space: gymnasium.spaces.Box) -> gymnasium.spaces.Box:
    import gymnasium

    with np.errstate(over="ignore"):  # the largest float64 becomes infinity
        low, high = space.low.astype(np.float32), space.high.astype(np.float32)
    return gymnasium.spaces.Box(low, high, space.shape, np.float32)


def _array(dtype: np.dtype) -> Callable[[Any], np.ndarray]:
    def copied(value: Any) -> np.ndarray:
        # An array keeps the dtype that it has: hiding a wrong one would hide an environment's bug.
        return value.copy() if isinstance(value, np.ndarray) else np.array(value, dtype)

    return copied


def _copy(value: Any) -> Any:
    if isinstance(value, np.ndarray):
        return value.copy()
    if isinstance(value, dict):
        return {key: _copy(item) for key, item in value.items()}
    if isinstance(value, tuple) and hasattr(value, "_fields"):  # a GraphInstance
        return type(value)(*map(_copy, value))
    if isinstance(value, tuple | list):
        return type(value)(map(_copy, value))
    return value


def _dotted(path: tuple[Any, ...]) -> str:
    return ".".join(map(str, path))
