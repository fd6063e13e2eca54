"""`rollout.results.journal`: what was recorded reads back, from whole and from damaged files."""

from __future__ import annotations

import json
import math
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from sample_records import KEYS, actions, at, header, result

from rollout.errors import ResultsError
from rollout.results.journal import (
    ACTIONS,
    EPISODES,
    Header,
    Journal,
    holds_journal,
    read_actions,
    read_journal,
)
from rollout.types import EpisodeFailure, EpisodeResult, Outcome, Spent
from rollout.values import pack, unpack


def write_whole_run(out: Path) -> bytes:
    with Journal.create(out, header()) as journal:
        for key in KEYS:
            journal.append(at(key), actions(key[2]))
        journal.seal(KEYS)
    return (out / EPISODES).read_bytes()


# --- writing and reading back


def test_what_is_appended_reads_back_equal(tmp_path: Path) -> None:
    results = [
        at(KEYS[0], video="videos/a.mp4", init_state=3, built=True),
        at(KEYS[1], Outcome.FAILURE, sum_reward=None, max_reward=None, nonfinite_reward=True),
        at(KEYS[2], Outcome.UNKNOWN, sum_reward=-0.1, seed=2**63 + 5),
        at(KEYS[3], Outcome.ERROR),
    ]
    with Journal.create(tmp_path / "a" / "b", header()) as journal:
        for item in results:
            journal.append(item, None)
    read_header, read = read_journal(tmp_path / "a" / "b")
    assert read == results
    assert read_header == header(config=json.loads(json.dumps(header().config)))
    assert read_journal(tmp_path / "a" / "b" / EPISODES) == (read_header, read)


def test_a_record_is_on_disk_before_append_returns(tmp_path: Path) -> None:
    with Journal.create(tmp_path, header()) as journal:
        for count, key in enumerate(KEYS, start=1):
            journal.append(at(key), actions(key[2]))
            assert [item.key for item in read_journal(tmp_path)[1]] == KEYS[:count]
            assert list(read_actions(tmp_path)) == KEYS[:count]


def test_every_line_is_one_strict_json_object(tmp_path: Path) -> None:
    failure = EpisodeFailure(type="ValueError", message="a\nb \u2028 \x00 \ud800 end", traceback="…\n")
    with Journal.create(tmp_path, header(policy="p\udcff")) as journal:
        journal.append(result(0, Outcome.ERROR, error=failure), None)
    text = (tmp_path / EPISODES).read_text(encoding="utf-8")
    lines = text.split("\n")
    assert len(lines) == 3
    assert lines[2] == ""
    record = json.loads(lines[1], parse_constant=pytest.fail)
    assert record["error"]["message"] == "a\nb \u2028 \x00 \\ud800 end"
    assert json.loads(lines[0])["policy"] == "p\\udcff"


def test_a_number_that_is_not_finite_cannot_become_an_unflagged_null(tmp_path: Path) -> None:
    with Journal.create(tmp_path, header()) as journal:
        for bad in (
            result(sum_reward=math.nan),
            result(max_reward=math.inf),
            result(sum_reward=None),
            result(time_s=Spent(sim=math.nan)),
        ):
            with pytest.raises(AssertionError):
                journal.append(bad, None)
    assert read_journal(tmp_path)[1] == []


def test_an_episode_without_a_step_has_no_reward_and_needs_no_flag(tmp_path: Path) -> None:
    ended_at_once = result(steps=0, sum_reward=None, max_reward=None)
    with Journal.create(tmp_path, header()) as journal:
        journal.append(ended_at_once, None)
    assert read_journal(tmp_path)[1] == [ended_at_once]


def test_actions_read_back_with_their_dtypes_and_containers(tmp_path: Path) -> None:
    nested = [{"move": np.arange(3, dtype=np.int64), "say": "up"}, {"move": np.zeros(3, np.int64), "say": ""}]
    with Journal.create(tmp_path, header()) as journal:
        journal.append(at(KEYS[0]), pack(np.ones((5, 4), np.float16)))
        journal.append(at(KEYS[1]), pack(nested))
    read = read_actions(tmp_path)
    first, second = unpack(read[KEYS[0]].actions), unpack(read[KEYS[1]].actions)
    assert first.dtype == np.float16
    assert first.shape == (5, 4)
    assert first.min() == 1
    assert [type(step) for step in second] == [dict, dict]
    assert second[0]["say"] == "up"
    assert second[0]["move"].tolist() == [0, 1, 2]
    assert read[KEYS[1]].digest == at(KEYS[1]).digest
    assert read_actions(tmp_path / ACTIONS).keys() == read.keys()


def test_sealing_puts_records_into_plan_order_whatever_order_they_finished_in(tmp_path: Path) -> None:
    whole = write_whole_run(tmp_path / "ordered")
    with Journal.create(tmp_path / "mixed", header()) as journal:
        for key in reversed(KEYS):
            journal.append(at(key), actions(key[2]))
        journal.seal(KEYS)
    assert (tmp_path / "mixed" / EPISODES).read_bytes() == whole
    assert sorted(path.name for path in (tmp_path / "mixed").iterdir()) == [".lock", ACTIONS, EPISODES]


def test_a_sealed_journal_can_still_be_appended_to(tmp_path: Path) -> None:
    with Journal.create(tmp_path, header()) as journal:
        journal.append(at(KEYS[1]), None)
        journal.seal(KEYS[:1])  # the record is not in this order: it is kept
        journal.append(at(KEYS[0]), None)
    assert [item.key for item in read_journal(tmp_path)[1]] == [KEYS[1], KEYS[0]]


# --- damage


_texts = st.text(st.characters(codec="utf-8"), max_size=20)
_records = st.builds(
    result,
    st.integers(0, 50),
    st.sampled_from(Outcome),
    task=_texts,
    steps=st.integers(0, 10**6),
    digest=st.none() | _texts,
    sum_reward=st.floats(allow_nan=False, allow_infinity=False),
)


@pytest.fixture(scope="module")
def scratch(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("scratch")


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.lists(_records, max_size=4, unique_by=lambda item: item.key), st.data())
def test_any_prefix_of_the_bytes_reads_as_a_prefix_of_the_records(
    scratch: Path, results: list[EpisodeResult], data: st.DataObject
) -> None:
    (scratch / EPISODES).unlink(missing_ok=True)
    with Journal.create(scratch, header()) as journal:
        for item in results:
            journal.append(item, actions(1))
    whole, whole_actions = (scratch / EPISODES).read_bytes(), (scratch / ACTIONS).read_bytes()
    header_end = whole.index(b"\n")
    cut = data.draw(st.integers(0, len(whole)))
    (scratch / EPISODES).write_bytes(whole[:cut])
    (scratch / ACTIONS).write_bytes(whole_actions[: data.draw(st.integers(0, len(whole_actions)))])
    assert list(read_actions(scratch)) == [item.key for item in results][: len(read_actions(scratch))]
    if cut < header_end:
        with pytest.raises(ResultsError, match="not a run's header"):
            read_journal(scratch)
        return
    read = read_journal(scratch)[1]
    assert read == results[: len(read)]
    assert len(read) >= whole[:cut].count(b"\n") - 1


def test_a_run_cut_at_any_byte_resumes_to_the_undisturbed_result(tmp_path: Path) -> None:
    whole = write_whole_run(tmp_path / "whole")
    whole_actions = (tmp_path / "whole" / ACTIONS).read_bytes()
    out = tmp_path / "cut"
    out.mkdir()
    header_end = whole.index(b"\n")
    for cut in {*range(0, len(whole), 97), 1, 24, 25, header_end, header_end + 1, len(whole) - 1}:
        (out / EPISODES).write_bytes(whole[:cut])
        (out / ACTIONS).write_bytes(whole_actions + whole_actions[: cut % len(whole_actions)])
        with Journal.resume(out, header()) as journal:
            missing = KEYS[len(journal.recorded) :]
            for key in missing:
                journal.append(at(key), actions(key[2]))
            journal.seal(KEYS)
        assert (out / EPISODES).read_bytes() == whole, cut
        assert {key: unpack(item.actions)[0, 0] for key, item in read_actions(out).items()} == {
            key: key[2] for key in KEYS
        }, cut


def test_a_torn_last_line_is_dropped_cut_off_and_told(tmp_path: Path) -> None:
    write_whole_run(tmp_path)
    path = tmp_path / EPISODES
    path.write_bytes(path.read_bytes()[:-5])
    assert [item.key for item in read_journal(tmp_path)[1]] == KEYS[:-1]
    with Journal.resume(tmp_path, header()) as journal:
        assert [item.key for item in journal.recorded] == KEYS[:-1]
        assert journal.notes == ("the journal's last line was torn and is dropped: its episode runs again",)
        journal.append(at(KEYS[-1]), None)
    assert [item.key for item in read_journal(tmp_path)[1]] == KEYS


def test_a_last_line_that_lacks_only_its_end_is_kept(tmp_path: Path) -> None:
    write_whole_run(tmp_path)
    path = tmp_path / EPISODES
    path.write_bytes(path.read_bytes()[:-1])
    with Journal.resume(tmp_path, header()) as journal:
        assert [item.key for item in journal.recorded] == KEYS
        assert journal.notes == ()
    assert len(path.read_bytes().splitlines()) == 1 + len(KEYS)


@pytest.mark.parametrize("damage", [b"", b"{}", b"[" * 200_000, b"\xff\xfe", b'{"suite": 3}', b"\x00" * 40])
def test_a_damaged_line_in_the_middle_is_named(tmp_path: Path, damage: bytes) -> None:
    write_whole_run(tmp_path)
    path = tmp_path / EPISODES
    lines = path.read_bytes().split(b"\n")
    lines[3] = damage
    path.write_bytes(b"\n".join(lines))
    with pytest.raises(ResultsError, match=rf"{EPISODES}, line 4: not an episode's record"):
        read_journal(tmp_path)
    with pytest.raises(ResultsError, match="line 4"):
        Journal.resume(tmp_path, header())
    assert path.read_bytes() == b"\n".join(lines)


def test_of_two_lines_on_one_episode_the_last_counts(tmp_path: Path) -> None:
    with Journal.create(tmp_path, header()) as journal:
        journal.append(result(0, Outcome.ERROR), None)
        journal.append(result(1), actions(7))
        journal.append(result(0, Outcome.FAILURE), None)
        journal.append(result(1), actions(8))
    assert [item.outcome for item in read_journal(tmp_path)[1]] == [Outcome.FAILURE, Outcome.SUCCESS]
    assert unpack(read_actions(tmp_path)[result(1).key].actions)[0, 0] == 8


def test_a_damaged_actions_record_is_named(tmp_path: Path) -> None:
    write_whole_run(tmp_path)
    path = tmp_path / ACTIONS
    data = bytearray(path.read_bytes())
    data[8] = 0xC1  # a byte that MessagePack never uses
    path.write_bytes(data)
    with pytest.raises(ResultsError, match="the record at byte 0 is damaged"):
        read_actions(tmp_path)


def test_a_tail_of_zeros_left_by_a_power_failure_is_torn(tmp_path: Path) -> None:
    write_whole_run(tmp_path)
    for name in (ACTIONS, EPISODES):
        with (tmp_path / name).open("ab") as file:
            file.write(bytes(100))
    assert list(read_actions(tmp_path)) == KEYS
    assert [item.key for item in read_journal(tmp_path)[1]] == KEYS


@pytest.mark.parametrize("content", [b"", b"hello", b"hello\n", b'{"kind":"other"}\n', b"\xff\n", b"{}\n"])
def test_a_file_that_is_no_journal_is_refused_by_the_reader(tmp_path: Path, content: bytes) -> None:
    (tmp_path / EPISODES).write_bytes(content)
    with pytest.raises(ResultsError, match="the first line is not a run's header"):
        read_journal(tmp_path)


def test_a_journal_of_a_newer_format_is_refused(tmp_path: Path) -> None:
    (tmp_path / EPISODES).write_bytes(b'{"kind":"rollout-journal","format":2,"other":[]}\n')
    with pytest.raises(ResultsError, match="a newer rollout wrote it"):
        read_journal(tmp_path)


def test_a_missing_journal_is_one_clear_line(tmp_path: Path) -> None:
    for read in (read_journal, read_actions):
        with pytest.raises(ResultsError, match=r"^cannot read .*: No such file or directory$"):
            read(tmp_path / "nowhere")


# --- create and resume


def test_create_refuses_a_directory_that_holds_a_run(tmp_path: Path) -> None:
    whole = write_whole_run(tmp_path)
    with pytest.raises(ResultsError, match=r"already holds a run: use --resume to .*, or another --out$"):
        Journal.create(tmp_path, header())
    assert (tmp_path / EPISODES).read_bytes() == whole
    assert len(read_actions(tmp_path)) == len(KEYS)
    Journal.resume(tmp_path, header()).close()  # and the refusal left no lock behind


@pytest.mark.parametrize("foreign", [b'{"episode_index": 0}\n', b'{"episode_index": 0}', b"notes"])
def test_no_mode_overwrites_a_file_of_that_name_that_is_not_ours(tmp_path: Path, foreign: bytes) -> None:
    (tmp_path / EPISODES).write_bytes(foreign)
    assert holds_journal(tmp_path)
    for start in (Journal.create, Journal.resume):
        with pytest.raises(ResultsError):
            start(tmp_path, header())
    assert (tmp_path / EPISODES).read_bytes() == foreign


@pytest.mark.parametrize("left", [None, b"", b'{"ki', b'{"kind":"rollout-journal","form'])
def test_resume_starts_afresh_where_nothing_is_recorded(tmp_path: Path, left: bytes | None) -> None:
    if left is not None:
        (tmp_path / EPISODES).write_bytes(left)
    (tmp_path / ACTIONS).write_bytes(b"stale")
    assert not holds_journal(tmp_path)
    with Journal.resume(tmp_path, header()) as journal:
        assert journal.recorded == []
        assert journal.notes == ()
        journal.append(at(KEYS[0]), actions(0))
    assert [item.key for item in read_journal(tmp_path)[1]] == KEYS[:1]
    assert list(read_actions(tmp_path)) == KEYS[:1]


def test_a_resumed_run_tries_errors_again_and_drops_their_lines(tmp_path: Path) -> None:
    with Journal.create(tmp_path, header()) as journal:
        journal.append(at(KEYS[0]), actions(0))
        journal.append(at(KEYS[1], Outcome.ERROR), None)
        journal.append(at(KEYS[2], Outcome.UNKNOWN), actions(2))
    with Journal.resume(tmp_path, header()) as journal:
        assert [item.key for item in journal.recorded] == [KEYS[0], KEYS[2]]
        assert journal.notes == ("episodes that ended as errors are tried again: 1",)
    assert [item.key for item in read_journal(tmp_path)[1]] == [KEYS[0], KEYS[2]]
    assert list(read_actions(tmp_path)) == [KEYS[0], KEYS[2]]


def test_resume_names_every_setting_that_changed(tmp_path: Path) -> None:
    whole = write_whole_run(tmp_path)
    config = {**header().config, "episodes": 20, "options": {"camera": "front"}, "policy_args": {}}
    with pytest.raises(ResultsError) as caught:
        Journal.resume(tmp_path, header(fingerprint="f1", config=config))
    message = str(caught.value)
    assert 'episodes 3 -> 20, options {} -> {"camera":"front"}, policy_args null -> {}; resume it' in message
    assert "targets" not in message
    assert "\n" not in message
    assert (tmp_path / EPISODES).read_bytes() == whole


def test_resume_refuses_another_shard_and_another_fingerprint(tmp_path: Path) -> None:
    write_whole_run(tmp_path)
    with pytest.raises(ResultsError, match=r"shard null -> \[1,2\]"):
        Journal.resume(tmp_path, header(shard=(1, 2)))
    with pytest.raises(ResultsError, match="fingerprint f0 -> f1"):
        Journal.resume(tmp_path, header(fingerprint="f1"))


def test_resume_abbreviates_long_settings(tmp_path: Path) -> None:
    write_whole_run(tmp_path)
    config = {**header().config, "policy": "x" * 10_000}
    with pytest.raises(ResultsError, match=r'policy "expert" -> "x{99}…;') as caught:
        Journal.resume(tmp_path, header(fingerprint="f1", config=config))
    assert len(str(caught.value)) < 500 + len(str(tmp_path))


def test_resume_accepts_settings_that_read_back_differently_from_json(tmp_path: Path) -> None:
    config = {"targets": ("a", "b"), "policy_args": {"scale": math.nan, "name": "\ud800"}}
    Journal.create(tmp_path, header(config=config, shard=(2, 3))).close()
    Journal.resume(tmp_path, header(config=config, shard=(2, 3))).close()
    assert read_journal(tmp_path)[0].shard == (2, 3)


def test_the_header_remembers_every_version_that_a_run_met(tmp_path: Path) -> None:
    Journal.create(tmp_path, header(gl="egl")).close()
    newer = {"rollout": "0.1.0", "mujoco": "3.4.0", "torch": "2.4"}
    with Journal.resume(tmp_path, header(versions=newer, gl="osmesa", created="later")) as journal:
        assert sorted(journal.notes) == [
            "mujoco was 3.3.0 for the episodes on record and is 3.4.0 now: the numbers mix both",
            "the GL backend was egl for the episodes on record and is osmesa now: the numbers mix both",
        ]
    with Journal.resume(tmp_path, header(versions=newer, gl="osmesa")) as journal:
        assert journal.notes == ()
    read = read_journal(tmp_path)[0]
    assert read.versions == {"rollout": "0.1.0", "mujoco": "3.3.0, then 3.4.0", "torch": "2.4"}
    assert (read.gl, read.created) == ("egl, then osmesa", header().created)


def test_headers_are_stamped_with_the_time_in_utc() -> None:
    values: dict[str, Any] = {name: getattr(header(), name) for name in Header.__struct_fields__}
    del values["created"]
    stamp = datetime.fromisoformat(Header(**values).created)
    assert stamp.utcoffset() == timedelta(0)
    assert abs(datetime.now(UTC) - stamp) < timedelta(minutes=5)


def test_a_directory_can_be_asked_for_a_journal_without_being_made(tmp_path: Path) -> None:
    assert not holds_journal(tmp_path / "new")
    assert not (tmp_path / "new").exists()
    (tmp_path / "file").touch()
    with pytest.raises(ResultsError, match=r"^cannot read .*: Not a directory$"):
        holds_journal(tmp_path / "file")
