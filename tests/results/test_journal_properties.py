"""A journal cut or damaged anywhere, and one that somebody else made: what is whole is read, and nothing more."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from sample_records import KEYS, actions, at, header

from rollout.errors import ResultsError
from rollout.results import journal as module
from rollout.results import reading
from rollout.results.files import write_atomically
from rollout.results.journal import ACTIONS, EPISODES, Journal, Key, holds_journal, read_actions, read_journal
from rollout.types import EpisodeResult
from rollout.values import unpack

relaxed = settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.too_slow])
RECORDS = [at(key) for key in KEYS]


@pytest.fixture(scope="module")
def scratch(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("scratch")


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> tuple[bytes, bytes]:
    """The two files of a run that nothing disturbed."""
    out = tmp_path_factory.mktemp("whole")
    with Journal.create(out, header()) as journal:
        go_on(journal)
    return (out / EPISODES).read_bytes(), (out / ACTIONS).read_bytes()


def go_on(journal: Journal) -> None:
    """Measure what is not on record, as a run does."""
    done = {result.key for result in journal.recorded}
    for key in KEYS:
        if key not in done:
            journal.append(at(key), actions(key[2]))
    journal.seal(KEYS)


def fresh(out: Path, episodes: bytes, kept: bytes) -> Path:
    shutil.rmtree(out, ignore_errors=True)
    out.mkdir()
    (out / EPISODES).write_bytes(episodes)
    (out / ACTIONS).write_bytes(kept)
    return out


cuts = st.integers(0, 10**6)


@relaxed
@given(cuts, cuts)
@example(0, 0)
@example(10**6 - 1, 0)
def test_a_run_cut_anywhere_keeps_every_whole_record_and_resumes_to_the_same_files(
    scratch: Path, whole: tuple[bytes, bytes], cut: int, actions_cut: int
) -> None:
    """The two files are cut apart from each other, as a power failure may leave them."""
    lines, kept = whole
    cut %= len(lines) + 1
    out = fresh(scratch / "cut", lines[:cut], kept[: actions_cut % (len(kept) + 1)])
    n_whole = max(0, lines[:cut].count(b"\n") - 1)
    assert read_actions(out).keys() <= set(KEYS)
    with Journal.resume(out, header()) as journal:
        assert journal.recorded[:n_whole] == RECORDS[:n_whole]
        assert len(journal.recorded) <= n_whole + 1  # the last line may lack only its end
        go_on(journal)
    assert (out / EPISODES).read_bytes() == lines
    found = read_actions(out)
    assert all(unpack(item.actions)[0, 0] == key[2] for key, item in found.items())
    assert set(KEYS[n_whole + 1 :]) <= found.keys()  # of everything that was run again


@relaxed
@given(cuts, st.lists(cuts, min_size=1, max_size=3))
def test_a_run_that_is_cut_again_and_again_ends_in_the_same_files(
    scratch: Path, whole: tuple[bytes, bytes], first: int, later: list[int]
) -> None:
    lines, kept = whole
    out = fresh(scratch / "again", lines[: first % len(lines)], kept)
    for cut in later:
        with Journal.resume(out, header()) as journal:
            go_on(journal)
        data = (out / EPISODES).read_bytes()
        (out / EPISODES).write_bytes(data[: cut % (len(data) + 1)])
    with Journal.resume(out, header()) as journal:
        go_on(journal)
    assert (out / EPISODES).read_bytes() == lines


flips = st.lists(st.tuples(cuts, st.integers(1, 255)), min_size=1, max_size=5)


def flipped(data: bytes, places: list[tuple[int, int]]) -> bytes:
    changed = bytearray(data)
    for place, bits in places:
        changed[place % len(changed)] ^= bits
    return bytes(changed)


def outcome(act: Callable[[], object]) -> str | None:
    """None, or the line that a `ResultsError` says; any other exception is a fault of ours."""
    try:
        act()
    except ResultsError as exc:
        return str(exc)
    return None


@settings(max_examples=80, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(flips, st.booleans())
def test_a_damaged_directory_is_read_or_refused_in_one_line(
    scratch: Path, whole: tuple[bytes, bytes], places: list[tuple[int, int]], in_actions: bool
) -> None:
    lines, kept = whole
    out = fresh(
        scratch / "flipped",
        lines if in_actions else flipped(lines, places),
        flipped(kept, places) if in_actions else kept,
    )
    before = (out / EPISODES).read_bytes()
    for act in (lambda: read_journal(out), lambda: read_actions(out), lambda: holds_journal(out)):
        outcome(act)
    if outcome(lambda: Journal.resume(out, header()).close()) is not None:
        assert (out / EPISODES).read_bytes() == before  # what is refused is left alone


garbage = st.binary(max_size=300) | st.sampled_from(
    [b"[" * 100_000, b'{"a":' * 100_000, b"\x91" * 100_000, b"\x80\x04\x95\x00", b"\xff" * 40, b"\n\n\n"]
)


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(garbage, garbage, st.booleans())
def test_garbage_is_a_results_error_and_never_another_exception(
    scratch: Path, whole: tuple[bytes, bytes], episodes: bytes, kept: bytes, headed: bool
) -> None:
    if headed:  # a true first line
        episodes = whole[0][: whole[0].index(b"\n") + 1] + episodes
    length = len(kept).to_bytes(8, "little")
    out = fresh(scratch / "garbage", episodes, length + kept)
    assert "\n" not in (outcome(lambda: read_journal(out)) or "")
    assert "\n" not in (outcome(lambda: read_actions(out)) or "")
    outcome(lambda: Journal.create(out, header()).close())
    outcome(lambda: Journal.resume(out, header()).close())


@relaxed
@given(st.integers(1, 2**64 - 1))
def test_a_record_that_declares_more_than_the_file_holds_is_a_torn_tail(
    scratch: Path, whole: tuple[bytes, bytes], declared: int
) -> None:
    lines, kept = whole
    out = fresh(scratch / "declared", lines, kept + declared.to_bytes(8, "little"))
    assert list(read_actions(out)) == KEYS
    Journal.resume(out, header()).close()
    assert (out / ACTIONS).read_bytes() == kept


@relaxed
@given(st.permutations(KEYS), st.lists(st.sampled_from(KEYS), max_size=3), st.sets(st.sampled_from(KEYS)))
def test_sealing_gives_the_plans_order_and_loses_nothing(
    scratch: Path, order: list[Key], again: list[Key], planned: set[Key]
) -> None:
    """Whatever the order of finishing, with episodes that were recorded twice, and with some that no plan names."""
    out = scratch / "sealed"
    shutil.rmtree(out, ignore_errors=True)
    plan = [key for key in KEYS if key in planned]
    with Journal.create(out, header()) as journal:
        for key in order:
            journal.append(at(key), None)
        for key in again:
            journal.append(at(key, attempts=2), None)
        journal.seal(plan)
    read = read_journal(out)[1]
    rest = [key for key in order if key not in planned]
    assert [result.key for result in read] == plan + rest
    assert {result.key for result in read if result.attempts == 2} == set(again)
    assert (out / EPISODES).read_bytes().count(b"\n") == 1 + len(KEYS)


def test_a_line_longer_than_any_of_ours_is_refused_and_never_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for each in (module, reading):
        monkeypatch.setattr(each, "MAX_LINE", 2000)
    with Journal.create(tmp_path, header()) as journal:
        journal.append(at(KEYS[0]), actions(0))
        with pytest.raises(ResultsError, match=r"the record of .* has [0-9]+ bytes"):
            journal.append(at(KEYS[1], digest="x" * 3000), actions(0))
        journal.append(at(KEYS[2]), actions(0))
    assert [result.key for result in read_journal(tmp_path)[1]] == [KEYS[0], KEYS[2]]
    with (tmp_path / EPISODES).open("ab") as file:
        file.write(b" " * 3000)
    with pytest.raises(ResultsError, match="line 4: longer than 2000 bytes"):
        read_journal(tmp_path)
    (tmp_path / EPISODES).write_bytes(b" " * 3000)
    with pytest.raises(ResultsError, match="not a run's header"):
        read_journal(tmp_path)


# --- a directory that somebody else made


@pytest.mark.parametrize(
    "video",
    [
        "/etc/passwd",
        "../../elsewhere.mp4",
        "videos/../../elsewhere.mp4",
        "videos/a/../../../x.mp4",
        "summary.json",
        "javascript:alert(1)",
        "https://example.com/videos/a.mp4",
        "videos/a\x1b[2J.mp4",
        "",
    ],
)
def test_a_video_outside_of_the_directory_is_not_followed_and_told(tmp_path: Path, video: str) -> None:
    with Journal.create(tmp_path, header()) as journal:
        journal.append(at(KEYS[0], video=video), None)
        journal.append(at(KEYS[1], video="videos/toy/0_t/episode_0001.mp4"), None)
    kept = [None, "videos/toy/0_t/episode_0001.mp4"]
    assert [result.video for result in read_journal(tmp_path)[1]] == kept
    with Journal.resume(tmp_path, header()) as journal:
        assert [result.video for result in journal.recorded] == kept
        assert journal.notes == (
            "records that name a video outside of the results directory have none now: 1",
        )


@pytest.mark.parametrize("name", [".lock", ACTIONS])
def test_a_link_in_place_of_a_file_is_never_written_through(tmp_path: Path, name: str) -> None:
    victim = tmp_path / "victim"
    victim.write_bytes(b"mine")
    out = tmp_path / "out"
    out.mkdir()
    (out / name).symlink_to(victim)
    for start in (Journal.create, Journal.resume):
        with pytest.raises(ResultsError, match=rf"^cannot write .*{name}: it is a symbolic link"):
            start(out, header())
    assert victim.read_bytes() == b"mine"
    (out / name).unlink()
    Journal.create(out, header()).close()


@pytest.mark.parametrize("name", [EPISODES, "summary.json"])
def test_a_link_in_place_of_a_file_that_is_replaced_is_replaced(tmp_path: Path, name: str) -> None:
    victim = tmp_path / "victim"
    shutil.copy(write_run(tmp_path / "run") / EPISODES, victim)
    before = victim.read_bytes()
    out = tmp_path / "out"
    out.mkdir()
    (out / name).symlink_to(victim)
    with Journal.resume(out, header()) as journal:
        go_on(journal)
    write_atomically(out / "summary.json", [b"{", b"}"])
    assert victim.read_bytes() == before
    assert not (out / name).is_symlink()


@pytest.mark.parametrize("where", ["videos", "videos/toy", "videos/toy/0_t"])
def test_a_folder_of_videos_that_is_a_link_is_refused(tmp_path: Path, where: str) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    out = write_run(tmp_path / "out")
    (out / where).parent.mkdir(parents=True, exist_ok=True)
    (out / where).symlink_to(elsewhere)
    with pytest.raises(ResultsError, match=rf"{where} is a symbolic link, and may lead anywhere"):
        Journal.resume(out, header())
    (out / where).unlink()
    (out / where).mkdir()
    # A file that the user linked stays: videos are replaced, never written through.
    (elsewhere / "mine.mp4").touch()
    (out / where / "best.mp4").symlink_to(elsewhere / "mine.mp4")
    Journal.resume(out, header()).close()


@pytest.mark.parametrize("name", [EPISODES, ACTIONS, ".lock"])
def test_a_pipe_in_place_of_a_file_is_refused_at_once(tmp_path: Path, name: str) -> None:
    out = write_run(tmp_path)
    (out / name).unlink()
    os.mkfifo(out / name)
    with pytest.raises(ResultsError, match=rf"{name}: (it is no regular file|No such device)"):
        Journal.resume(out, header())
    if name != ".lock":
        with pytest.raises(ResultsError, match="it is no regular file"):
            (read_journal if name == EPISODES else read_actions)(out)


def test_a_file_larger_than_memory_is_one_line(tmp_path: Path) -> None:
    out = write_run(tmp_path)
    with (out / ACTIONS).open("ab") as file:
        file.truncate(1 << 43)  # a hole: it takes no room
    assert "larger than the memory that is free" in (outcome(lambda: read_actions(out)) or "")
    Journal.resume(out, header()).close()  # which looks only at lengths
    assert list(read_actions(out)) == KEYS


def test_a_record_with_the_fields_of_later_versions_is_read(tmp_path: Path) -> None:
    out = write_run(tmp_path)
    lines = (out / EPISODES).read_bytes().splitlines()
    lines[1] = lines[1][:-1] + b',"later":{"of":[1,2]}}'
    (out / EPISODES).write_bytes(b"\n".join(lines) + b"\n")
    assert read_journal(out)[1] == RECORDS
    assert isinstance(msgspec.json.decode(lines[1], type=EpisodeResult), EpisodeResult)


def write_run(out: Path) -> Path:
    with Journal.create(out, header()) as journal:
        go_on(journal)
    return out
