"""The records of a run, kept small: a run of days has hundreds of thousands."""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final, SupportsIndex, overload

import msgspec
from msgspec.structs import astuple

from rollout.results.files import without_surrogates
from rollout.results.reading import Key
from rollout.types import EpisodeResult, EpisodeSpec, Spent

__all__ = ["Records"]

IDENTITY: Final = tuple(
    name for name in EpisodeResult.__struct_fields__ if name in EpisodeSpec.__struct_fields__
)
OUTCOME: Final = tuple(name for name in EpisodeResult.__struct_fields__ if name not in IDENTITY)

_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder().decode


def _packed(values: tuple[Any, ...]) -> bytes:
    try:
        return _encode(values)
    except UnicodeEncodeError:  # as the journal's line has it
        return _encode(without_surrogates(msgspec.to_builtins(values)))


class Records(Sequence[EpisodeResult]):
    """The records of a plan's episodes, in the plan's order; those that are not on record yet are left out.

    Packed, and unpacked when looked at: as an object each would take 650 bytes, of which its spec has told a part, and
    so it takes 150. Equal to a tuple of the same records, and adds and multiplies as one; `tuple(records)` is one.
    """

    def __init__(self, specs: Sequence[EpisodeSpec]) -> None:
        self._specs = specs
        self.places: Mapping[Key, int] = {spec.key: place for place, spec in enumerate(specs)}  # in the plan
        self._packed = bytearray()  # one after the other, as they came
        self._starts = array("q", [-1]) * len(specs)  # there, by place
        self._sizes = array("q", [0]) * len(specs)
        self._count = 0
        self._present: Sequence[int] | None = None  # the places that have a record, once somebody asked

    def add(self, result: EpisodeResult) -> None:
        """Take in a record of a planned episode; a second one on it replaces the first."""
        place = self.places[result.key]
        # Without the names in `time_s`, which are always the same.
        values = {name: getattr(result, name) for name in OUTCOME} | {"time_s": astuple(result.time_s)}
        packed = _packed(tuple(values.values()))
        if self._starts[place] < 0:
            self._count += 1
            self._present = None
        self._starts[place], self._sizes[place] = len(self._packed), len(packed)
        self._packed += packed

    def has(self, key: Key) -> bool:
        """Whether the episode `key` of the plan is on record."""
        return self._starts[self.places[key]] >= 0

    def __iter__(self) -> Iterator[EpisodeResult]:
        return (self._unpack(place) for place, start in enumerate(self._starts) if start >= 0)

    def __len__(self) -> int:
        return self._count

    @overload
    def __getitem__(self, index: int) -> EpisodeResult: ...
    @overload
    def __getitem__(self, index: slice) -> tuple[EpisodeResult, ...]: ...
    def __getitem__(self, index: int | slice) -> EpisodeResult | tuple[EpisodeResult, ...]:
        places = self._places_present()[index]
        return self._unpack(places) if isinstance(places, int) else tuple(map(self._unpack, places))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Records | tuple | list) and tuple(self) == tuple(other)

    def __hash__(self) -> int:
        return hash(tuple(self))

    def __repr__(self) -> str:
        first = f": {self[0]!r}{', …' if len(self) > 1 else ''}" if self else ""
        return f"<{len(self)} records{first}>"

    def __add__(self, other: object) -> tuple[Any, ...]:
        return (*self, *other) if isinstance(other, Records | tuple) else NotImplemented

    def __radd__(self, other: object) -> tuple[Any, ...]:
        return (*other, *self) if isinstance(other, tuple) else NotImplemented

    def __mul__(self, times: SupportsIndex) -> tuple[EpisodeResult, ...]:
        return tuple(self) * times

    __rmul__ = __mul__

    def _places_present(self) -> Sequence[int]:
        if self._count == len(self._starts):
            return range(self._count)
        if self._present is None:
            self._present = array("q", (place for place, start in enumerate(self._starts) if start >= 0))
        return self._present

    def _unpack(self, place: int) -> EpisodeResult:
        start, size = self._starts[place], self._sizes[place]
        outcome = dict(zip(OUTCOME, _decode(self._packed[start : start + size]), strict=True))
        outcome["time_s"] = dict(zip(Spent.__struct_fields__, outcome["time_s"], strict=True))
        spec = self._specs[place]
        identity: dict[str, Any] = {name: getattr(spec, name) for name in IDENTITY}
        return msgspec.convert(identity | outcome, EpisodeResult)
