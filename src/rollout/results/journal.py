"""The journal of a run: `episodes.jsonl`, a header line and then one line an episode, and `actions.msgpack`.

`episodes.jsonl` is strict JSON, one object a line. `actions.msgpack` holds, one after the other, records of
an 8-byte little-endian length and an `Actions` in MessagePack. Both only grow while a run lasts, by whole
records. What a run left is read by `rollout.results.reading`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import chain
from math import isfinite
from pathlib import Path
from types import TracebackType
from typing import Self

import msgspec

from rollout.errors import ResultsError
from rollout.results.files import (
    AppendFile,
    DirectoryLock,
    encode_json,
    opened,
    refuse_links,
    reporting,
    write_atomically,
)
from rollout.results.header import Header, changes, drift, merged
from rollout.results.reading import (
    ACTIONS,
    EPISODES,
    LENGTH_BYTES,
    MAX_LINE,
    VIDEOS,
    Actions,
    Contents,
    Key,
    bytes_at,
    holds_journal,
    read_actions,
    read_contents,
    read_journal,
    spans,
    whole_size,
)
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


class Journal:
    """Owns a results directory's journal while a run writes it: `with Journal.create(…) as journal`.

    Not for several threads. Every method that writes raises `ResultsError` where the disk is full or fails;
    what was recorded before stays readable.
    """

    def __init__(self, out: Path, lock: DirectoryLock, contents: Contents, notes: Sequence[str]) -> None:
        self.out = out
        self.header = contents.header
        self.recorded = contents.results  # what a resumed run need not run again; never an error
        self.notes = (*_unguarded(lock), *notes)  # a line each, for the user: what resuming dropped or found
        self._lock = lock
        refuse_links(out / VIDEOS)
        actions = out / ACTIONS
        self._actions = AppendFile.open(actions, keep=whole_size(actions) if self.recorded else 0)
        try:
            self._lines = self._rewrite(map(encode_json, self.recorded))
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
            return cls(out, lock, Contents(header, []), ())
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
                return cls(out, lock, Contents(header, []), ())
            old = read_contents(out / EPISODES)
            if changed := changes(old.header, header):
                raise ResultsError(
                    f"{out} was made with other settings: {', '.join(changed)}; "
                    "resume it with the old ones, or give another --out"
                )
            measured = [result for result in old.results if result.outcome is not Outcome.ERROR]
            notes = [*drift(old.header, header), *_dropped(old, len(old.results) - len(measured))]
            return cls(out, lock, Contents(merged(old.header, header), measured), notes)
        except BaseException:
            lock.close()
            raise

    def append(self, result: EpisodeResult, actions: Value | None) -> None:
        """Record one finished episode, and its executed actions (None: there are none to keep)."""
        _assert_strict(result)
        line = encode_json(result) + b"\n"
        if len(line) > MAX_LINE:
            raise ResultsError(
                f"the record of {result.key} has {len(line)} bytes: {self.out} takes {MAX_LINE}"
            )
        # Actions first: an episode on record then always has its actions.
        if actions is not None:
            self._actions.append(_encode_actions(result, actions))
        self._lines.append(line)

    def seal(self, order: Iterable[Key] | Mapping[Key, int]) -> None:
        """Rewrite the journal with its records in the plan's order, in one atomic step.

        `order` is the plan's episodes one after the other, or the place of each.
        Two runs' files can then be compared line by line, whatever order their episodes finished in. Records
        that `order` lacks are kept, behind the others.
        """
        places = order if isinstance(order, Mapping) else {key: place for place, key in enumerate(order)}
        path = self.out / EPISODES
        with reporting("read", path), opened(path) as file:  # line by line: a long run has many
            lines = (bytes_at(file, *span) for span in spans(path, file, places))
            replaced, self._lines = self._lines, self._rewrite(lines)
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

    def _rewrite(self, records: Iterable[bytes]) -> AppendFile:
        path = self.out / EPISODES
        write_atomically(path, (line + b"\n" for line in chain([encode_json(self.header)], records)))
        return AppendFile.open(path)


def _encode_actions(result: EpisodeResult, actions: Value) -> bytes:
    record = msgspec.msgpack.encode(Actions(*result.key, result.digest, actions))
    return len(record).to_bytes(LENGTH_BYTES, "little") + record


def _unguarded(lock: DirectoryLock) -> tuple[str, ...]:
    return () if lock.held else ("this file system has no locks: nothing keeps a second run out",)


def _dropped(old: Contents, errors: int) -> Iterator[str]:
    if old.torn:
        yield "the journal's last line was torn and is dropped: its episode runs again"
    if old.strays:
        yield f"records that name a video outside of the results directory have none now: {old.strays}"
    if errors:
        yield f"episodes that ended as errors are tried again: {errors}"


def _assert_strict(result: EpisodeResult) -> None:
    """JSON would turn a non-finite number into null without its flag: whoever made the record should have."""
    numbers = (result.sum_reward, result.max_reward, *msgspec.structs.astuple(result.time_s))
    assert all(number is None or isfinite(number) for number in numbers), f"not finite: {result}"
    missing = result.steps > 0 and (result.sum_reward is None or result.max_reward is None)
    assert not missing or result.nonfinite_reward or result.error is not None, f"not flagged: {result}"
