"""What `rollout serve` and rollout's own client say to each other inside openpi's protocol.

openpi's messages hold one observation. They know no episodes, so that a policy behind them can neither remember
anything nor draw its noise from the episode's seed. The metadata of a server of ours therefore has an entry `rollout`,
an `Offer`; a client of ours that sees it asks with `{"rollout": <Asked>}`, which holds everything that a `Request` has.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, TypeVar

import msgspec
from msgspec import Struct

from rollout.errors import ProtocolError
from rollout.policies.base import PolicySpec
from rollout.types import EpisodeSpec, TaskInfo
from rollout.values import UNDECODABLE, Value

__all__ = ["ENTRY", "Asked", "Offer", "Opening", "asked", "offered", "opening"]

T = TypeVar("T")

ENTRY: Final = "rollout"  # in metadata and messages
FORMAT: Final = 1  # of `Asked`


class Offer(Struct, frozen=True, kw_only=True):
    """What a server of ours says of its policy."""

    policy: str  # as its `--policy` names it
    identity: str  # a hash over everything on the server's side that affects results: options, a checkpoint's digest
    rollout: str  # the server's version
    spec: PolicySpec
    versions: dict[str, str] = {}  # the policy's own
    format: int = FORMAT


class Opening(Struct, frozen=True, array_like=True):
    """What `Policy.open_session` gets."""

    episode: EpisodeSpec
    task: TaskInfo


class Asked(Struct, frozen=True, array_like=True):
    """One decision. `number` counts the requests of a session: a number that is sent again is the same request, whose
    answer was lost on the way, and not the next one."""

    client: str  # made up at random
    session: int  # of this client
    number: int
    decision: int
    step: int
    opening: msgspec.Raw  # an `Opening`
    observation: dict[str, Value]


def offered(metadata: Any) -> Offer | None:
    """The offer in a server's metadata; None where it is no server of ours. Raises `ProtocolError`."""
    if not isinstance(metadata, Mapping) or ENTRY not in metadata:
        return None
    entry = metadata[ENTRY]
    if not isinstance(entry, Mapping) or entry.get("format") != FORMAT:
        version = entry.get("rollout") if isinstance(entry, Mapping) else None
        raise ProtocolError(f"the server runs rollout {version}, which speaks to its own version only")
    try:
        return msgspec.convert(entry, Offer)
    except msgspec.ValidationError as exc:
        raise ProtocolError(f"the server's metadata: {exc}") from exc


def asked(data: Any) -> Asked:
    """Decode what a client of ours sent. Raises `ProtocolError`."""
    return _decoded(_asked, data)


def opening(data: Any) -> Opening:
    """Decode `Asked.opening`. Raises `ProtocolError`."""
    return _decoded(_opening, data)


def _decoded(decoder: msgspec.msgpack.Decoder[T], data: Any) -> T:
    try:
        return decoder.decode(data)
    except (*UNDECODABLE, TypeError) as exc:
        raise ProtocolError(f"the entry {ENTRY!r} of the request: {exc}") from exc


_asked: Final = msgspec.msgpack.Decoder(Asked)
_opening: Final = msgspec.msgpack.Decoder(Opening)
