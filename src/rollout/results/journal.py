"""The journal of a run: `episodes.jsonl`, a header line and then one line an episode, and `actions.msgpack`.

`episodes.jsonl` is strict JSON, one object a line. `actions.msgpack` holds, one after the other, records of
an 8-byte little-endian length and an `Actions` in MessagePack. Both only grow while a run lasts, by whole
records.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import chain
from math import isfinite
from pathlib import Path
from types import TracebackType
from typing import Self, TypeAlias

import msgspec
from msgspec import Struct

from rollout.errors import ResultsError
from rollout.results.files import AppendFile, DirectoryLock, encode_json, reporting, write_atomically
from rollout.results.header import Header, begins_header, changes, decode_header, drift, merged
from rollout.types import EpisodeResult, Outcome
from rollout.values import Value

__all__ = [
    "ACTIONS",
    "EPISODES",
    "Actions",
    "Header",
    "Journal",
    "Key",
    "holds_journal",
    "read_actions",
    "read_journal",
]

EPISODES = "episodes.jsonl"
ACTIONS = "actions.msgpack"

Key: TypeAlias = tuple[str, int, int]
"""(suite, task_id, episode): what identifies an episode within a run."""

_LENGTH_BYTES = 8
_DAMAGED = (msgspec.MsgspecError, UnicodeDecodeError, RecursionError)  # what decoding hostile bytes may raise


class Actions(Struct, frozen=True, array_like=True):
    """The executed actions of one episode, a record of `actions.msgpack`."""

    suite: str
    task_id: int
    episode: int
    digest: str | None  # of the episode's record, so that the two can be matched
    actions: Value  # packed (`rollout.values`), in order: (steps, action_dim), or one nested value a step

    @property
    def key(self) -> Key:
        """The episode that the actions belong to."""
        return (self.suite, self.task_id, self.episode)


_RESULT_DECODER = msgspec.json.Decoder(EpisodeResult)
_ACTIONS_DECODER = msgspec.msgpack.Decoder(Actions)


class _Contents(Struct, frozen=True):
    header: Header
    results: list[EpisodeResult]
    torn: bool = False


class Journal:
    """Owns a results directory's journal while a run writes it: `with Journal.create(…) as journal`.

    Not for several threads. Every method that writes raises `ResultsError` where the disk is full or fails;
    what was recorded before stays readable.
    """

    def __init__(self, out: Path, lock: DirectoryLock, contents: _Contents, notes: Sequence[str]) -> None:
        self.out = out
        self.header = contents.header
        self.recorded = contents.results  # what a resumed run need not run again; never an error
        self.notes = (*_unguarded(lock), *notes)  # a line each, for the user: what resuming dropped or found
        self._lock = lock
        actions = out / ACTIONS
        self._actions = AppendFile.open(actions, keep=_whole_size(actions) if self.recorded else 0)
        try:
            self._lines = self._rewrite(self.recorded)
        except BaseException:
            self._actions.close()
            raise

    @classmethod
    def create(cls, out: Path, header: Header) -> Journal:
        """Start a journal in `out`, made if need be.

        Raises `ResultsError` where `out` holds a journal already, is in use by another run, or is not
        writable.
        """
        lock = DirectoryLock(out)
        try:
            if holds_journal(out):
                raise ResultsError(
                    f"{out} already holds a run: use --resume to go on with it, or another --out"
                )
            return cls(out, lock, _Contents(header, []), ())
        except BaseException:
            lock.close()
            raise

    @classmethod
    def resume(cls, out: Path, header: Header) -> Journal:
        """Go on with the journal in `out`, or start one where there is none.

        `recorded` then holds every episode that was measured. Episodes that ended as errors are not kept: a
        resumed run tries them again, so their lines are dropped from the journal here; so is a torn last
        line. The header stays the first run's, with any other version or rendering backend added to it, and
        told in `notes`. Raises `ResultsError` where `out` is in use by another run or not writable, where a
        line is damaged, and where `header` differs in what affects results: it names each setting with its
        old and new value.
        """
        lock = DirectoryLock(out)
        try:
            if not holds_journal(out):
                return cls(out, lock, _Contents(header, []), ())
            old = _read(out / EPISODES)
            if changed := changes(old.header, header):
                raise ResultsError(
                    f"{out} was made with other settings: {', '.join(changed)}; "
                    "resume it with the old ones, or give another --out"
                )
            measured = [result for result in old.results if result.outcome is not Outcome.ERROR]
            notes = [*drift(old.header, header), *_dropped(old, len(old.results) - len(measured))]
            return cls(out, lock, _Contents(merged(old.header, header), measured), notes)
        except BaseException:
            lock.close()
            raise

    def append(self, result: EpisodeResult, actions: Value | None) -> None:
        """Record one finished episode, and its executed actions (None: there are none to keep)."""
        _assert_strict(result)
        # Actions first: an episode on record then always has its actions.
        if actions is not None:
            self._actions.append(_encode_actions(result, actions))
        self._lines.append(encode_json(result) + b"\n")

    def seal(self, order: Iterable[Key]) -> None:
        """Rewrite the journal with its records in the plan's order, in one atomic step.

        Two runs' files can then be compared line by line, whatever order their episodes finished in. Records
        that `order` lacks are kept, behind the others.
        """
        position = {key: index for index, key in enumerate(order)}
        results = _read(self.out / EPISODES).results
        results.sort(key=lambda result: position.get(result.key, len(position)))
        replaced, self._lines = self._lines, self._rewrite(results)
        replaced.close()

    def close(self) -> None:
        """Close the files and let the next run in; a second call does nothing."""
        self._lines.close()
        self._actions.close()
        self._lock.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def _rewrite(self, results: Iterable[EpisodeResult]) -> AppendFile:
        path = self.out / EPISODES
        write_atomically(path, b"".join(encode_json(line) + b"\n" for line in chain([self.header], results)))
        return AppendFile.open(path)


def holds_journal(out: Path) -> bool:
    """Whether directory `out` holds a journal that may have records, or another file of its name.

    It need not exist. What is left of a header without its end holds no record. Raises `ResultsError` where
    it cannot be read.
    """
    path = out / EPISODES
    with reporting("read", path):
        try:
            with path.open("rb") as file:
                line = file.readline()
        except FileNotFoundError:
            return False
    return line.endswith(b"\n") or not begins_header(line)


def read_journal(path: str | Path) -> tuple[Header, list[EpisodeResult]]:
    """Read the journal in directory `path`, or the file `path`, in the order of its lines.

    A torn last line is dropped; of two lines on one episode the last one counts. Raises `ResultsError` where
    there is no journal, where its header is torn or of a newer format, or where a line is damaged (it names
    the line).
    """
    contents = _read(_file_at(path, EPISODES))
    return contents.header, contents.results


def read_actions(path: str | Path) -> dict[Key, Actions]:
    """Read the executed actions in directory `path`, or in the file `path`; arrays are views on its bytes.

    A torn last record is dropped; of two records on one episode the last one counts. An episode may be here
    that the journal lacks: its run was stopped between the two. Raises `ResultsError` where the file is
    missing or damaged.
    """
    path = _file_at(path, ACTIONS)
    found: dict[Key, Actions] = {}
    for start, record in _whole_records(_bytes_of(path)):
        try:
            actions = _ACTIONS_DECODER.decode(record)
        except _DAMAGED as exc:
            raise ResultsError(f"{path}: the record at byte {start} is damaged: {exc}") from exc
        found[actions.key] = actions
    return found


def _read(path: Path) -> _Contents:
    first, *lines = _bytes_of(path).split(b"\n")
    try:
        header = decode_header(first)
    except ResultsError as exc:
        raise ResultsError(f"{path}: {exc}") from exc
    tail = lines.pop() if lines else b""  # what follows the last line's end
    results = [_decode_line(path, number, line) for number, line in enumerate(lines, start=2)]
    torn = False
    if tail:
        try:
            # Where this works, only the line's end is missing: no part of a JSON object is a JSON object.
            results.append(_RESULT_DECODER.decode(tail))
        except _DAMAGED:
            torn = True
    return _Contents(header, list({result.key: result for result in results}.values()), torn)


def _decode_line(path: Path, number: int, line: bytes) -> EpisodeResult:
    try:
        return _RESULT_DECODER.decode(line)
    except _DAMAGED as exc:
        raise ResultsError(f"{path}, line {number}: not an episode's record: {exc}") from exc


def _file_at(path: str | Path, name: str) -> Path:
    path = Path(path)
    with reporting("read", path):
        return path / name if path.is_dir() else path


def _bytes_of(path: Path) -> bytes:
    with reporting("read", path):
        return path.read_bytes()


def _whole_records(data: bytes) -> Iterator[tuple[int, memoryview]]:
    """Every whole record's offset and content; one of no length, or beyond the end, begins the torn tail."""
    start, view = 0, memoryview(data)
    while (body := start + _LENGTH_BYTES) <= len(data):
        length = int.from_bytes(view[start:body], "little")
        if length == 0 or body + length > len(data):
            return
        yield start, view[body : body + length]
        start = body + length


def _whole_size(path: Path) -> int:
    """How many bytes of `path` are whole records."""
    if not path.exists():
        return 0
    return sum(_LENGTH_BYTES + len(record) for _, record in _whole_records(_bytes_of(path)))


def _encode_actions(result: EpisodeResult, actions: Value) -> bytes:
    record = msgspec.msgpack.encode(Actions(*result.key, result.digest, actions))
    return len(record).to_bytes(_LENGTH_BYTES, "little") + record


def _unguarded(lock: DirectoryLock) -> tuple[str, ...]:
    return () if lock.held else ("this file system has no locks: nothing keeps a second run out",)


def _dropped(old: _Contents, errors: int) -> Iterator[str]:
    if old.torn:
        yield "the journal's last line was torn and is dropped: its episode runs again"
    if errors:
        yield f"episodes that ended as errors are tried again: {errors}"


def _assert_strict(result: EpisodeResult) -> None:
    """JSON would turn a non-finite number into null without its flag: whoever made the record should have."""
    numbers = (result.sum_reward, result.max_reward, *msgspec.structs.astuple(result.time_s))
    assert all(number is None or isfinite(number) for number in numbers), f"not finite: {result}"
    missing = result.steps > 0 and (result.sum_reward is None or result.max_reward is None)
    assert not missing or result.nonfinite_reward or result.error is not None, f"not flagged: {result}"
