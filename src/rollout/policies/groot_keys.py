"""What a GR00T server reads and returns, and where in our observations that is."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final, Literal

import msgspec
import numpy as np
from msgspec import Struct

from rollout.config import nearest
from rollout.errors import PolicyError, ProtocolError, UsageError
from rollout.policies.groot_wire import as_array
from rollout.types import Observation

__all__ = ["Keys", "Layout", "Modalities", "Modality", "joined"]

Layout = Literal["nested", "flat"]
"""`nested`: by modality, then by key, a text as a list of one, as `Gr00tPolicy` takes it.
`flat`: by `<modality>.<key>`, as a server with `--use-sim-policy-wrapper` does."""

# gr00t/eval/sim/LIBERO/libero_env.py: position, axis times angle (in spite of the names), the two fingers.
LIBERO_STATE: Final[Mapping[str, str]] = {
    "x": "observation.state[0:1]",
    "y": "observation.state[1:2]",
    "z": "observation.state[2:3]",
    "roll": "observation.state[3:4]",
    "pitch": "observation.state[4:5]",
    "yaw": "observation.state[5:6]",
    "gripper": "observation.state[6:8]",
}
LIBERO_CAMERAS: Final[Mapping[str, str]] = {"wrist_image": "observation.images.image2"}
SOURCE: Final = re.compile(r"([^\[\]]+)(?:\[(\d*):(\d*)\])?")


class Modality(Struct, frozen=True):
    """The keys of one modality, and which steps of each are meant, relative to the present one."""

    modality_keys: tuple[str, ...] = ()
    delta_indices: tuple[int, ...] = (0,)


class Modalities(Struct, frozen=True):
    """What `get_modality_config` tells."""

    action: Modality
    language: Modality = Modality()
    state: Modality = Modality()
    video: Modality = Modality()

    @classmethod
    def parse(cls, answer: Any) -> Modalities:
        """Read the server's answer, in N1.6's form or N1.7's. Raises `ProtocolError`."""
        try:
            told = {name: _unwrapped(value) for name, value in answer.items()}
            found = msgspec.convert(told, cls)
        except (AttributeError, ValueError, msgspec.MsgspecError) as exc:
            raise ProtocolError(f"get_modality_config with no description of modalities: {exc}") from exc
        if not found.action.modality_keys:
            raise ProtocolError("get_modality_config without a key of any action")
        if max(found._steps, default=0) > 0:
            raise ProtocolError(f"get_modality_config with observations of the future: {found._steps}")
        return found

    @property
    def n_obs_steps(self) -> int:
        """How far the observations go back, the present one counted."""
        return 1 - min(self._steps, default=0)

    @property
    def _steps(self) -> tuple[int, ...]:
        read = [modality for modality in (self.video, self.state) if modality.modality_keys]
        return tuple(step for modality in read for step in modality.delta_indices)


class Source(Struct, frozen=True):
    """One of our observation keys, or a part of its last axis."""

    key: str
    start: int | None = None
    stop: int | None = None

    @classmethod
    def parse(cls, text: Any) -> Source:
        """Read `observation.state` or `observation.state[0:3]`. Raises `UsageError`."""
        match = SOURCE.fullmatch(text) if isinstance(text, str) else None
        if match is None:
            raise UsageError(
                f"policy gr00t: keys: {text!r} is no observation key, like observation.state[0:3]"
            )
        start, stop = (int(bound) if bound else None for bound in match.groups()[1:])
        return cls(match[1], start, stop)

    def __str__(self) -> str:
        part = "" if self.start is self.stop is None else f"[{self.start or ''}:{self.stop or ''}]"
        return self.key + part


class Keys:
    """Makes the server's batches out of our observations."""

    def __init__(self, modalities: Modalities, given: Mapping[str, str]) -> None:
        """`given` says where what the server calls `video.<key>`, `state.<key>` or, for language, `<key>` is.

        Raises `UsageError` where something else is given, and where a key has no place that goes without saying.
        """
        self._modalities = modalities
        known = [full for _, _, full in self._each()]
        for full in given:
            if full not in known:
                hint = nearest(full, known)
                raise UsageError(
                    f"policy gr00t: keys: the server reads no {full!r}{hint} (it reads {', '.join(known)})"
                )
        self._sources = {
            full: Source.parse(given[full] if full in given else self._default(modality, name, full))
            for modality, name, full in self._each()
        }

    @property
    def observation_keys(self) -> tuple[str, ...]:
        """What is read of an observation, each key once."""
        return tuple(dict.fromkeys(source.key for source in self._sources.values() if source.key != "task"))

    def asks_for_flat(self, text: str) -> bool:
        """Whether a server that was sent the nested layout misses a key of the flat one in it."""
        return any(full in text for _, name, full in self._each() if full != name)

    def batch(self, observations: Sequence[Observation], layout: Layout) -> dict[str, Any]:
        """The server's observations: video (B, T, H, W, 3) uint8, state (B, T, D) float32, language B texts.

        Raises `PolicyError` where an observation is not what its modality takes.
        """
        nested: dict[str, dict[str, Any]] = {"video": {}, "state": {}, "language": {}}
        flat: dict[str, Any] = {}
        for modality, name, full in self._each():
            source = self._sources[full]
            if modality == "language":
                texts = [str(observation[source.key]) for observation in observations]
                nested[modality][name], flat[full] = [[text] for text in texts], texts
            else:
                nested[modality][name] = flat[full] = self._stacked(modality, full, source, observations)
        return nested if layout == "nested" else flat

    def _stacked(
        self, modality: str, full: str, source: Source, observations: Sequence[Observation]
    ) -> np.ndarray:
        deltas = getattr(self._modalities, modality).delta_indices
        try:
            rows = [self._steps(observation[source.key], source, deltas) for observation in observations]
            batch = np.stack(rows)
        except (TypeError, ValueError, IndexError) as exc:
            raise PolicyError(f"policy gr00t: {full} cannot be made of {source}: {exc}") from exc
        expected = "(H, W, 3) uint8" if modality == "video" else "(D,), at least one number of it"
        picture = batch.ndim == 5 and batch.shape[-1] == 3 and batch.dtype == np.uint8
        if not (picture if modality == "video" else batch.ndim == 3 and batch.size):
            raise PolicyError(
                f"policy gr00t: {full} cannot be made of {source}, which is {batch.shape[2:]} {batch.dtype}: "
                f"expected {expected} (see --policy-arg keys)"
            )
        return batch if modality == "video" else batch.astype(np.float32)

    def _steps(self, value: Any, source: Source, deltas: Sequence[int]) -> np.ndarray:
        """(T, …): what `deltas` name of a value that may have a history."""
        history = np.asarray(value)[..., source.start : source.stop]
        if self._modalities.n_obs_steps == 1:
            history = history[np.newaxis]
        return history[[len(history) - 1 + delta for delta in deltas]]

    def _each(self) -> Iterator[tuple[str, str, str]]:
        """Modality, key, and the key's full name."""
        for modality in ("video", "state", "language"):
            for name in getattr(self._modalities, modality).modality_keys:
                yield modality, name, name if modality == "language" else full_name(modality, name)

    def _default(self, modality: str, name: str, full: str) -> str:
        short = full.removeprefix(f"{modality}.")
        if modality == "language":
            return "task"
        if modality == "video":
            return LIBERO_CAMERAS.get(short, f"observation.images.{short}")
        names = {full_name(modality, name) for name in self._modalities.state.modality_keys}
        if names == {full_name(modality, name) for name in LIBERO_STATE}:
            return LIBERO_STATE[short]
        if len(names) == 1:
            return "observation.state"
        raise UsageError(
            f"policy gr00t: say which part of an observation the server's {full} is: "
            f'--policy-arg keys=\'{{"{full}": "observation.state[0:3]", …}}\' (it reads {", ".join(sorted(names))})'
        )


def full_name(modality: str, name: str) -> str:
    """`state.x` for `x`, and for `state.x`, as older checkpoints call it."""
    return name if name.startswith(f"{modality}.") else f"{modality}.{name}"


def joined(answer: Any, names: Sequence[str], n_rows: int) -> np.ndarray:
    """The actions in the server's answer to `get_action`, (B, T, action_dim) float32, parts in the order of `names`.

    Raises `ProtocolError` where a part is missing or is no (B, T, D) of B = `n_rows`.
    """
    if not isinstance(answer, list) or len(answer) != 2 or not isinstance(answer[0], dict):
        raise ProtocolError(f"get_action with {type(answer).__name__}: expected [action, info]")
    parts = [_part(answer[0], name, n_rows) for name in names]
    steps = {part.shape[1] for part in parts}
    if len(steps) > 1:
        told = ", ".join(f"{name} {part.shape}" for name, part in zip(names, parts, strict=True))
        raise ProtocolError(f"get_action with chunks of different lengths: {told}")
    return np.concatenate(parts, axis=-1, dtype=np.float32)


def _part(action: dict[Any, Any], name: str, n_rows: int) -> np.ndarray:
    found = next((key for key in (name, full_name("action", name)) if key in action), None)
    if found is None:
        raise ProtocolError(f"get_action without {name!r} (it has {', '.join(map(str, action))})")
    part = as_array(action[found])
    if part.ndim != 3 or part.shape[0] != n_rows or not part.size or part.dtype.kind == "c":
        raise ProtocolError(
            f"get_action with {name!r} of shape {part.shape}, {part.dtype}: expected ({n_rows}, T, D)"
        )
    return part


def _unwrapped(value: Any) -> Any:
    """N1.7 and N1.6 wrap a modality's description in a map of its own, as JSON or as a map."""
    inner = value.get("as_json", value) if isinstance(value, dict) else value
    return msgspec.json.decode(inner) if isinstance(inner, str | bytes) else inner
