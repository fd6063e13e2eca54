"""The journal's first line, and what a resumed run's header may and may not change in it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from typing import Any

import msgspec
from msgspec import Struct, field

from rollout.errors import ResultsError
from rollout.results.files import encode_json
from rollout.types import ProtocolUsed
from rollout.values import UNDECODABLE

__all__ = ["FORMAT", "Header", "begins_header", "changes", "decode_header", "drift", "merged"]

FORMAT = 1

_KIND = "rollout-journal"
_FIRST_BYTES = b'{"kind":"rollout-journal"'
_THEN = ", then "
_BRIEF = 100  # characters of a setting's value in a message


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")


class Header(Struct, frozen=True, kw_only=True, tag_field="kind", tag=_KIND):
    """What was run, and with what."""

    format: int = FORMAT  # of the journal; a reader refuses a newer one
    created: str = field(default_factory=_now)  # ISO 8601, UTC
    config: dict[str, Any]  # what affects results, by name (`EvalConfig.identity`)
    fingerprint: str  # hash over `config`
    policy: str  # as the user named it
    versions: dict[str, str]  # by package; "3.3.0, then 3.3.1" where a resumed run met another one
    gl: str | None  # MuJoCo's rendering backend, e.g. "egl"; None: nothing was rendered
    protocol: ProtocolUsed  # whose evaluation rules, value by value
    planned: int  # episodes in the plan, of this shard alone where there is one
    shard: tuple[int, int] | None = None  # (k, n): every n-th episode from the k-th


class _Format(Struct, frozen=True, tag_field="kind", tag=_KIND):
    format: int


def decode_header(line: bytes) -> Header:
    """Decode the first line. Raises `ResultsError` where it is torn, not a header, or of a newer format."""
    try:
        # The format alone first: the other fields of a newer header may be other ones.
        written = msgspec.json.decode(line, type=_Format).format
        if written > FORMAT:
            raise ResultsError(
                f"a newer rollout wrote it (format {written}; this one reads {FORMAT}): upgrade rollout"
            )
        return msgspec.json.decode(line, type=Header)
    except UNDECODABLE as exc:
        raise ResultsError(f"the first line is not a run's header (torn, or another file): {exc}") from exc


def begins_header(torn: bytes) -> bool:
    """Whether `torn`, a first line without its end, can be what is left of a header (or nothing is)."""
    return _FIRST_BYTES.startswith(torn[: len(_FIRST_BYTES)])


def changes(old: Header, new: Header) -> list[str]:
    """What affects results and differs, as "name old -> new"; empty where `new` may go on with `old`."""
    before, after = _identity(old), _identity(new)
    found = [
        f"{name} {_brief(before.get(name))} -> {_brief(after.get(name))}"
        for name in before | after
        if before.get(name) != after.get(name)
    ]
    if not found and old.fingerprint != new.fingerprint:
        found = [f"fingerprint {old.fingerprint} -> {new.fingerprint}"]
    return found


def _identity(header: Header) -> dict[str, Any]:
    """What must not change, as it reads back from JSON, where tuples are lists."""
    used = {
        f"{family} {option}": value
        for family, options in header.protocol.options.items()
        for option, value in options.items()
    }
    identity = {**header.config, **used, "shard": header.shard}
    return msgspec.json.decode(encode_json(identity), type=dict[str, Any])


def _brief(value: Any) -> str:
    text = encode_json(value).decode()
    return text if len(text) <= _BRIEF else f"{text[:_BRIEF]}…"


def merged(old: Header, new: Header) -> Header:
    """`old` with the versions of `new` added: a header must not hide that its records come from two."""
    versions = {name: _history(old.versions.get(name), version) for name, version in new.versions.items()}
    gl = old.gl if new.gl is None else _history(old.gl, new.gl)
    return msgspec.structs.replace(old, versions=old.versions | versions, gl=gl, planned=new.planned)


def drift(old: Header, new: Header) -> Iterator[str]:
    """One line for each version or rendering backend that is another one now."""
    before, after = _environment(old), _environment(new)
    for name in before.keys() & after.keys():
        known, now = _latest(before[name]), after[name]
        if known != now:
            yield f"{name} was {known} for the episodes on record and is {now} now: the numbers mix both"


def _environment(header: Header) -> Mapping[str, str]:
    return header.versions | ({} if header.gl is None else {"the GL backend": header.gl})


def _latest(history: str) -> str:
    return history.rpartition(_THEN)[2]


def _history(known: str | None, now: str) -> str:
    if known is None:
        return now
    return known if _latest(known) == now else f"{known}{_THEN}{now}"
