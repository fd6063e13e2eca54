"""The journal under real faults: a second run, a killed process, a full disk."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

import pytest
from sample_records import KEYS, actions, at, header, result

from rollout.errors import ResultsError
from rollout.results.journal import ACTIONS, EPISODES, Journal, read_actions, read_journal
from rollout.values import unpack

HERE = Path(__file__).parent
DEADLINE_S = 60


def test_a_second_run_on_one_directory_is_refused(tmp_path: Path) -> None:
    with Journal.create(tmp_path, header()) as journal:
        for start in (Journal.create, Journal.resume):
            with pytest.raises(ResultsError, match=rf"is in use by another run \(process {os.getpid()} on "):
                start(tmp_path, header())
        journal.append(at(KEYS[0]), None)
    with Journal.resume(tmp_path, header()) as journal:
        assert [item.key for item in journal.recorded] == KEYS[:1]


def test_a_journal_leaves_no_descriptor_open_however_it_ends(tmp_path: Path) -> None:
    (tmp_path / "bad").mkdir()
    (tmp_path / "bad" / EPISODES).write_bytes(b"{}\n")
    before = os.listdir("/proc/self/fd")
    with Journal.create(tmp_path / "good", header()) as journal:
        journal.append(at(KEYS[0]), None)
        journal.seal(KEYS)
        journal.seal(KEYS)
    for start in (Journal.create, Journal.resume):
        with pytest.raises(ResultsError):
            start(tmp_path / "bad", header())
    assert os.listdir("/proc/self/fd") == before


@contextmanager
def child(code: str, *arguments: str) -> Iterator[tuple[subprocess.Popen[str], IO[str]]]:
    """A process that runs `code`, and its output; killed at the deadline, so that reading never hangs."""
    program = f"import sys\nfrom pathlib import Path\nsys.path.insert(0, {str(HERE)!r})\n{code}"
    command = [sys.executable, "-c", program, *arguments]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        deadline = threading.Timer(DEADLINE_S, process.kill)
        deadline.start()
        try:
            assert process.stdout is not None
            yield process, process.stdout
        finally:
            deadline.cancel()
            process.kill()


WRITE_FOR_EVER = """
from sample_records import actions, header, result
from rollout.results.journal import Journal
journal = Journal.create(Path(sys.argv[1]), header())
episode = 0
while True:
    journal.append(result(episode), actions(episode))
    print(episode, flush=True)
    episode += 1
"""


@pytest.mark.parametrize("after", [1, 20, 173])
def test_what_a_killed_run_recorded_is_there_and_its_lock_is_gone(tmp_path: Path, after: int) -> None:
    with child(WRITE_FOR_EVER, str(tmp_path)) as (process, output):
        told = [int(output.readline()) for _ in range(after)]
        with pytest.raises(ResultsError, match=f"process {process.pid} on"):
            Journal.resume(tmp_path, header())
        process.kill()
        told += map(int, output.read().split("\n")[:-1])
    with Journal.resume(tmp_path, header()) as journal:
        recorded = [item.episode for item in journal.recorded]
    assert recorded == list(range(len(recorded)))
    assert recorded[: len(told)] == told
    kept = read_actions(tmp_path)
    assert all(unpack(kept[result(episode).key].actions)[0, 0] == episode for episode in recorded)


FILL_THE_DISK = """
import resource
from sample_records import actions, header, result
from rollout.errors import ResultsError
from rollout.results.journal import Journal
journal = Journal.create(Path(sys.argv[1]), header())
resource.setrlimit(resource.RLIMIT_FSIZE, (int(sys.argv[2]), resource.RLIM_INFINITY))
episode = 0
try:
    while True:
        journal.append(result(episode), actions(episode, steps=int(sys.argv[3])))
        episode += 1
except ResultsError as exc:
    print(episode)
    print(exc)
resource.setrlimit(resource.RLIMIT_FSIZE, (500, resource.RLIM_INFINITY))
try:
    journal.seal([])
except ResultsError as exc:
    print(exc)
"""


@pytest.mark.parametrize(("steps", "full"), [(1, EPISODES), (1000, ACTIONS)])
def test_a_full_disk_is_one_clear_line_and_leaves_a_readable_journal(
    tmp_path: Path, steps: int, full: str
) -> None:
    with child(FILL_THE_DISK, str(tmp_path), "20001", str(steps)) as (process, output):
        told = output.read().splitlines()
        assert process.wait() == 0
    count = int(told[0])
    assert count > 1
    hint = "what was recorded is kept: make room, then go on with --resume"
    failed = [tmp_path / full, tmp_path / EPISODES]
    assert told[1:] == [f"cannot write {path}: File too large; {hint}" for path in failed]
    assert sorted(path.name for path in tmp_path.iterdir()) == [".lock", ACTIONS, EPISODES]
    assert [item.episode for item in read_journal(tmp_path)[1]] == list(range(count))
    for name in (ACTIONS, EPISODES):
        assert (tmp_path / name).stat().st_size <= 20001
    assert (tmp_path / EPISODES).read_bytes().endswith(b"\n")
    with Journal.resume(tmp_path, header()) as journal:  # on a disk with room again
        assert journal.notes == ()
        journal.append(result(count), actions(count))
    assert len(read_journal(tmp_path)[1]) == count + 1
    assert len(read_actions(tmp_path)) == count + 1
