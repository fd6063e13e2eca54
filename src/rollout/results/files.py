"""Files that survive what happens to a run: growing by whole records, replaced in one step, and locked."""

from __future__ import annotations

import errno
import fcntl
import os
import socket
import stat
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from itertools import chain
from pathlib import Path
from typing import IO, Any

import msgspec

from rollout.errors import ResultsError

__all__ = [
    "AppendFile",
    "DirectoryLock",
    "encode_json",
    "opened",
    "pretty_json",
    "refuse_links",
    "reporting",
    "without_surrogates",
    "write_atomically",
]

_FULL = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})
_FULL_HINT = "; what was recorded is kept: make room, then go on with --resume"
_NO_LOCKS = frozenset({errno.ENOSYS, errno.ENOLCK, errno.EOPNOTSUPP})
_ENCODER = msgspec.json.Encoder()


@contextmanager
def reporting(verb: str, path: Path) -> Iterator[None]:
    """Turn an `OSError` into a `ResultsError` of one line: what could not be done, why, and what to do."""
    try:
        yield
    except MemoryError as exc:
        raise ResultsError(f"cannot {verb} {path}: it is larger than the memory that is free") from exc
    except OSError as exc:
        hint = _FULL_HINT if exc.errno in _FULL else ""
        raise ResultsError(f"cannot {verb} {path}: {exc.strerror or exc}{hint}") from exc


def encode_json(value: Any) -> bytes:
    """Encode `value` as one line of strict JSON in UTF-8, without the line's end.

    A non-finite float becomes null. Lone surrogates, which UTF-8 cannot express and which exception messages
    and command lines may hold, are written as the text of their escape, e.g. a backslash and `ud800`.
    """
    try:
        return _ENCODER.encode(value)
    except UnicodeEncodeError:
        return _ENCODER.encode(without_surrogates(msgspec.to_builtins(value)))


def pretty_json(value: Any) -> bytes:
    """Like `encode_json`, indented by two spaces, with a line's end."""
    return msgspec.json.format(encode_json(value), indent=2) + b"\n"


def without_surrogates(value: Any) -> Any:
    """`value`, of Python's own types, with every lone surrogate as the text of its escape."""
    if isinstance(value, str):
        return value.encode("utf-8", "backslashreplace").decode()
    if isinstance(value, dict):
        return {without_surrogates(key): without_surrogates(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [without_surrogates(item) for item in value]
    return value


@contextmanager
def opened(path: Path) -> Iterator[IO[bytes]]:
    """`path` for reading, which must be a regular file: a device or a pipe would never end. Raises `OSError`."""
    with os.fdopen(_open_regular(path, os.O_RDONLY), "rb") as file:
        yield file


def _open_here(path: Path, flags: int) -> int:
    """Open or create a regular file that is no symbolic link: a results directory may be somebody else's."""
    try:
        return _open_regular(path, flags | os.O_CREAT | os.O_NOFOLLOW)
    except OSError as exc:
        if exc.errno == errno.ELOOP:
            raise OSError(errno.ELOOP, "it is a symbolic link, and may lead anywhere") from exc
        raise


def _open_regular(path: Path, flags: int) -> int:
    fd = os.open(path, flags | os.O_NONBLOCK | os.O_CLOEXEC, 0o666)  # not waiting for the other end of a pipe
    mode = os.fstat(fd).st_mode
    if not stat.S_ISREG(mode):
        os.close(fd)
        number, why = (errno.EISDIR, None) if stat.S_ISDIR(mode) else (errno.EINVAL, "it is no regular file")
        raise OSError(number, why or os.strerror(number))
    return fd


def refuse_links(directory: Path) -> None:
    """Raise `ResultsError` where `directory` or a folder in it is a symbolic link: what is written would leave it."""
    below = (Path(parent, name) for parent, names, _ in os.walk(directory) for name in names)
    for folder in chain([directory], below):  # itself first: `walk` follows it
        if folder.is_symlink():
            raise ResultsError(
                f"{folder} is a symbolic link, and may lead anywhere: put a folder in its place, or give another --out"
            )


def write_atomically(path: Path, data: bytes | Iterable[bytes]) -> None:
    """Write `data`, in one piece or several, to `path`, so that at any moment the file is the old one or the new one,
    and whole.

    A symbolic link is replaced, never followed. Raises `ResultsError` where it cannot be written; the old file stays.
    """
    temporary = path.with_name(f".{path.name}.tmp")
    with reporting("write", path):
        temporary.unlink(missing_ok=True)  # of a run that was killed here
        try:
            _write_synced(temporary, [data] if isinstance(data, bytes) else data)
            os.replace(temporary, path)
        except BaseException:
            with suppress(OSError):
                temporary.unlink(missing_ok=True)
            raise
        _sync_directory(path.parent)


def _write_synced(path: Path, pieces: Iterable[bytes]) -> None:
    # O_EXCL: never through a symbolic link that somebody left there.
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666)
    with os.fdopen(fd, "wb") as file:
        file.writelines(pieces)
        file.flush()
        os.fsync(fd)


def _sync_directory(directory: Path) -> None:
    fd = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    try:
        with suppress(OSError):  # some network file systems cannot; the replacement itself has succeeded
            os.fsync(fd)
    finally:
        os.close(fd)


def _write_all(fd: int, data: bytes) -> None:
    view = memoryview(data)
    while view:  # once, unless the file system takes only a part: the next write then says why
        view = view[os.write(fd, view) :]


class AppendFile:
    """A file that grows by whole records, each handed to the kernel in one write before `append` returns.

    A killed process therefore leaves at most one torn record, at the end. (A power failure may lose the last
    seconds: records are not synced to the disk one by one.)
    """

    def __init__(self, path: Path, fd: int) -> None:
        """Take over `fd`, open for appending; `path` is its name in messages."""
        self.path = path
        self._fd = fd

    @classmethod
    def open(cls, path: Path, *, keep: int | None = None) -> AppendFile:
        """Open or create `path`, cut to its first `keep` bytes (None: all). Raises `ResultsError`."""
        with reporting("write", path):
            fd = _open_here(path, os.O_WRONLY | os.O_APPEND)
            file = cls(path, fd)
            try:
                if keep is not None:
                    os.ftruncate(fd, keep)
            except OSError:
                file.close()
                raise
            return file

    def append(self, record: bytes) -> None:
        """Append `record`. Raises `ResultsError` on a full disk or another fault, leaving nothing of it."""
        with reporting("write", self.path):
            before = os.fstat(self._fd).st_size
            try:
                _write_all(self._fd, record)
            except OSError:
                with suppress(OSError):
                    os.ftruncate(self._fd, before)
                raise

    def close(self) -> None:
        """Close the file; a second call does nothing."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1


class DirectoryLock:
    """Keeps a second run out of a results directory until `close`, or the end of the process.

    It is a file of its own, `.lock`, since the journal beside it is replaced by renaming. Some cluster file
    systems have no locks: `held` is false there, and nothing but the user guards the directory.
    """

    def __init__(self, directory: Path) -> None:
        """Create `directory` if need be, and lock it. Raises `ResultsError` where another run holds it."""
        path = directory / ".lock"
        with reporting("make the directory", directory):
            directory.mkdir(parents=True, exist_ok=True)
        with reporting("write", path):
            self._fd = _open_here(path, os.O_RDWR)
        try:
            self.held = self._acquire(directory)
        except BaseException:
            self.close()
            raise

    def _acquire(self, directory: Path) -> bool:
        with reporting("lock", directory):
            try:
                fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError as exc:
                holder = os.pread(self._fd, 200, 0).decode(errors="replace").strip() or "unknown"
                raise ResultsError(
                    f"{directory} is in use by another run ({holder}): wait for its end, "
                    "or give another --out"
                ) from exc
            except OSError as exc:
                if exc.errno in _NO_LOCKS:
                    return False
                raise
            with suppress(OSError):  # only a courtesy to whoever is refused
                os.ftruncate(self._fd, 0)
                os.pwrite(self._fd, f"process {os.getpid()} on {socket.gethostname()}\n".encode(), 0)
        return True

    def close(self) -> None:
        """Let the next run in; a second call does nothing."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1
