"""`rollout.results.files`: real faults of real descriptors."""

from __future__ import annotations

import errno
import fcntl
import os
from pathlib import Path

import pytest

from rollout.errors import ResultsError
from rollout.results.files import AppendFile, DirectoryLock, encode_json, pretty_json, write_atomically


def test_a_full_device_is_one_clear_line(tmp_path: Path) -> None:
    file = AppendFile(tmp_path / "episodes.jsonl", os.open("/dev/full", os.O_WRONLY | os.O_APPEND))
    with pytest.raises(ResultsError) as caught:
        file.append(b"record\n")
    assert str(caught.value) == (
        f"cannot write {tmp_path / 'episodes.jsonl'}: No space left on device; "
        "what was recorded is kept: make room, then go on with --resume"
    )
    file.close()


def test_appended_bytes_go_behind_what_is_kept(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"whole|torn")
    file = AppendFile.open(path, keep=6)
    file.append(b"next|")
    assert path.read_bytes() == b"whole|next|"
    file.close()
    file.close()
    with pytest.raises(ResultsError, match="Bad file descriptor"):
        file.append(b"more")


def test_writing_atomically_replaces_the_file_and_leaves_nothing_beside_it(tmp_path: Path) -> None:
    path = tmp_path / "summary.json"
    (tmp_path / ".summary.json.tmp").write_bytes(b"of a killed run")
    write_atomically(path, b"old")
    before = path.stat().st_ino
    write_atomically(path, b"new")
    assert path.read_bytes() == b"new"
    assert path.stat().st_ino != before
    assert list(tmp_path.iterdir()) == [path]


def test_writing_atomically_does_not_follow_a_planted_link(tmp_path: Path) -> None:
    victim = tmp_path / "victim"
    victim.write_bytes(b"mine")
    (tmp_path / ".summary.json.tmp").symlink_to(victim)
    write_atomically(tmp_path / "summary.json", b"new")
    assert victim.read_bytes() == b"mine"
    assert (tmp_path / "summary.json").read_bytes() == b"new"


def test_what_cannot_be_replaced_is_one_clear_line(tmp_path: Path) -> None:
    (tmp_path / "summary.json").mkdir()
    with pytest.raises(ResultsError, match=r"^cannot write .*summary.json: Is a directory$"):
        write_atomically(tmp_path / "summary.json", b"new")
    assert [path.name for path in tmp_path.iterdir()] == ["summary.json"]


def test_a_results_directory_that_is_a_file_is_one_clear_line(tmp_path: Path) -> None:
    (tmp_path / "out").write_bytes(b"")
    with pytest.raises(ResultsError, match=r"^cannot make the directory .*out: File exists$"):
        DirectoryLock(tmp_path / "out")
    with pytest.raises(ResultsError, match=r"^cannot make the directory .*: Not a directory$"):
        DirectoryLock(tmp_path / "out" / "deeper")


def test_a_lock_is_free_again_once_closed(tmp_path: Path) -> None:
    first = DirectoryLock(tmp_path)
    assert first.held
    with pytest.raises(ResultsError, match="is in use by another run"):
        DirectoryLock(tmp_path)
    first.close()
    first.close()
    second = DirectoryLock(tmp_path)
    assert second.held
    second.close()


def test_a_file_system_without_locks_is_used_without_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(fd: int, operation: int) -> None:
        raise OSError(errno.ENOSYS, os.strerror(errno.ENOSYS))

    monkeypatch.setattr(fcntl, "flock", refuse)  # no such file system can be mounted in a test
    lock = DirectoryLock(tmp_path)
    assert not lock.held
    lock.close()


def test_json_keeps_strict_whatever_it_is_given() -> None:
    assert encode_json({"a": float("nan"), "b": [float("inf"), 0.1]}) == b'{"a":null,"b":[null,0.1]}'
    assert encode_json({"\ud800": ("\udfff", 2**70)}) == b'{"\\\\ud800":["\\\\udfff",1180591620717411303424]}'
    assert pretty_json({"a": [1]}) == b'{\n  "a": [\n    1\n  ]\n}\n'
