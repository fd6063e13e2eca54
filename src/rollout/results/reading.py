"""What a run left in its directory, read back: `episodes.jsonl` and `actions.msgpack`, whole or cut off anywhere.

The directory may come from elsewhere: nothing in it is unpickled, followed out of it, or held in memory by what it
declares of itself; whatever is wrong with it is a `ResultsError`.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Mapping
from os import SEEK_END
from pathlib import Path, PurePosixPath
from typing import IO, Final, TypeAlias, TypeVar

import msgspec
from msgspec import Struct

from rollout.errors import ResultsError
from rollout.results.files import opened, reporting
from rollout.results.header import Header, begins_header, decode_header
from rollout.types import EpisodeResult
from rollout.values import UNDECODABLE, Value

__all__ = [
    "ACTIONS",
    "EPISODES",
    "LENGTH_BYTES",
    "MAX_LINE",
    "VIDEOS",
    "Actions",
    "Contents",
    "Key",
    "bytes_at",
    "holds_journal",
    "read_actions",
    "read_contents",
    "read_journal",
    "spans",
    "whole_size",
]

EPISODES = "episodes.jsonl"
ACTIONS = "actions.msgpack"
VIDEOS = "videos"

MAX_LINE: Final = 64 << 20
"""The longest line of a journal that is written or read, in bytes; a record has some hundreds."""

T = TypeVar("T")
Key: TypeAlias = tuple[str, int, int]
"""(suite, task_id, episode): what identifies an episode within a run."""

LENGTH_BYTES = 8  # in front of each record of actions


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


class _Keyed(Struct, frozen=True):
    """What of a record says which episode it is of."""

    suite: str
    task_id: int
    episode: int


_RESULT_DECODER = msgspec.json.Decoder(EpisodeResult)
_KEYED_DECODER = msgspec.json.Decoder(_Keyed)
_ACTIONS_DECODER = msgspec.msgpack.Decoder(Actions)


class Contents(Struct, frozen=True):
    """What a journal holds."""

    header: Header
    results: list[EpisodeResult]
    torn: bool = False
    strays: int = 0  # videos named outside of the directory


def holds_journal(out: Path) -> bool:
    """Whether directory `out` holds a journal that may have records, or another file of its name.

    It need not exist. What is left of a header without its end holds no record. Raises `ResultsError` where
    it cannot be read.
    """
    path = out / EPISODES
    with reporting("read", path):
        try:
            with opened(path) as file:
                line = file.readline(MAX_LINE)
        except FileNotFoundError:
            return False
    return line.endswith(b"\n") or not begins_header(line)


def read_journal(path: str | Path) -> tuple[Header, list[EpisodeResult]]:
    """Read the journal in directory `path`, or the file `path`, in the order of its lines.

    A torn last line is dropped; of two lines on one episode the last one counts. A `video` that is no path below
    `videos/`, as in no run of ours, becomes None. Raises `ResultsError` where there is no journal, where its header is
    torn or of a newer format, or where a line is damaged (it names the line).
    """
    contents = read_contents(_file_at(path, EPISODES))
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
        except UNDECODABLE as exc:
            raise ResultsError(f"{path}: the record at byte {start} is damaged: {exc}") from exc
        found[actions.key] = actions
    return found


def read_contents(path: Path) -> Contents:
    """Everything in the file `path`. Raises `ResultsError`."""
    results: dict[Key, EpisodeResult] = {}
    torn, strays = False, 0
    with reporting("read", path), opened(path) as file:
        try:
            header = decode_header(file.readline(MAX_LINE).removesuffix(b"\n"))
        except ResultsError as exc:
            raise ResultsError(f"{path}: {exc}") from exc
        for number, line in _lines(path, file):
            try:
                result = _decoded(_RESULT_DECODER, path, number, line)
            except ResultsError:
                # Where this works without a line's end, only that is missing: no part of a JSON object is one.
                if line.endswith(b"\n"):
                    raise
                torn = True
                break
            if result.video is not None and not _is_inside(result.video):
                strays += 1
                result = msgspec.structs.replace(result, video=None)
            results[result.key] = result
    return Contents(header, list(results.values()), torn, strays)


def _is_inside(video: str) -> bool:
    """Whether it is a path as this package writes it: below `videos/`, and not out of there again."""
    parts = PurePosixPath(video).parts
    return parts[:1] == (VIDEOS,) and ".." not in parts and video.isprintable()


def _lines(path: Path, file: IO[bytes]) -> Iterator[tuple[int, bytes]]:
    """Every line behind the first with its number. Raises `ResultsError` where one is longer than any of ours."""
    for number, line in enumerate(iter(lambda: file.readline(MAX_LINE + 1), b""), start=2):
        if len(line) > MAX_LINE:
            raise ResultsError(
                f"{path}, line {number}: longer than {MAX_LINE} bytes: not an episode's record"
            )
        yield number, line


def _decoded(decoder: msgspec.json.Decoder[T], path: Path, number: int, line: bytes) -> T:
    try:
        return decoder.decode(line)
    except UNDECODABLE as exc:
        raise ResultsError(f"{path}, line {number}: not an episode's record: {exc}") from exc


def spans(path: Path, file: IO[bytes], places: Mapping[Key, int]) -> Iterator[tuple[int, int]]:
    """Where each episode's last line is: its offset, and its length without its end.

    In the order of their `places` (0, 1, …), and behind them those that have none.
    """
    starts, lengths = (
        array("q", [-1]) * len(places),
        array("q", [0]) * len(places),
    )  # small: there may be many
    others: dict[Key, tuple[int, int]] = {}
    at = len(file.readline())
    for number, line in _lines(path, file):
        keyed = _decoded(_KEYED_DECODER, path, number, line)
        key, length = (keyed.suite, keyed.task_id, keyed.episode), len(line.removesuffix(b"\n"))
        if key in places:
            starts[places[key]], lengths[places[key]] = at, length
        else:
            others[key] = (at, length)
        at += len(line)
    yield from (span for span in zip(starts, lengths, strict=True) if span[0] >= 0)
    yield from others.values()


def bytes_at(file: IO[bytes], offset: int, length: int) -> bytes:
    """A part of the file."""
    file.seek(offset)
    return file.read(length)


def _file_at(path: str | Path, name: str) -> Path:
    path = Path(path)
    with reporting("read", path):
        return path / name if path.is_dir() else path


def _bytes_of(path: Path) -> bytes:
    with reporting("read", path), opened(path) as file:
        return file.read()


def _whole_records(data: bytes) -> Iterator[tuple[int, memoryview]]:
    """Every whole record's offset and content; one of no length, or beyond the end, begins the torn tail."""
    start, view = 0, memoryview(data)
    while (body := start + LENGTH_BYTES) <= len(data):
        length = int.from_bytes(view[start:body], "little")
        if length == 0 or body + length > len(data):
            return
        yield start, view[body : body + length]
        start = body + length


def whole_size(path: Path) -> int:
    """How many bytes of `path` are whole records."""
    if not path.exists():
        return 0
    with reporting("read", path), opened(path) as file:
        size, whole = file.seek(0, SEEK_END), 0
        while whole + LENGTH_BYTES <= size:
            length = int.from_bytes(bytes_at(file, whole, LENGTH_BYTES), "little")
            if length == 0 or whole + LENGTH_BYTES + length > size:
                break
            whole += LENGTH_BYTES + length
    return whole
