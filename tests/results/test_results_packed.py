"""Records kept packed are the records, in the plan's order."""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Sequence

import msgspec
import numpy as np
import pytest

from rollout.results.files import encode_json
from rollout.results.packed import Records
from rollout.types import EpisodeFailure, EpisodeResult, EpisodeSpec, Outcome, Spent

SPECS = [
    EpisodeSpec(
        suite="gym:a", task=f"task {task}", task_id=task, episode=episode, seed=1000 + episode, horizon=9
    )
    for task in range(2)
    for episode in range(2)
]


def record(spec: EpisodeSpec, **values: object) -> EpisodeResult:
    identity = {
        name: getattr(spec, name) for name in ("suite", "task", "task_id", "episode", "seed", "init_state")
    }
    told = {
        "outcome": Outcome.SUCCESS,
        "success": True,
        "steps": 3,
        "sum_reward": 0.1,
        "max_reward": 1e308,
        "terminated": True,
        "truncated": False,
        "attempts": 1,
        "digest": "ab" * 16,
        "time_s": Spent(reset=0.1, sim=0.2, render=0.3, wait=0.4),
    }
    return EpisodeResult(**identity | told | values)


RECORDS = [
    record(SPECS[0]),
    record(
        SPECS[1], outcome=Outcome.UNKNOWN, success=None, sum_reward=None, video="videos/a/1.mp4", built=True
    ),
    record(
        SPECS[2],
        outcome=Outcome.ERROR,
        success=None,
        digest=None,
        error=EpisodeFailure(type="WorkerDied", message="\u2620", traceback="…"),
    ),
]


def test_records_come_back_equal_and_in_the_plans_order() -> None:
    records = Records(SPECS)
    for result in reversed(RECORDS):
        records.add(result)
    assert list(records) == RECORDS
    assert records == tuple(RECORDS)
    assert tuple(RECORDS) == records
    assert records != RECORDS[:2]
    assert (len(records), records[-1], records[1:]) == (3, RECORDS[2], tuple(RECORDS[1:]))
    assert msgspec.json.encode(list(records)) == msgspec.json.encode(RECORDS)
    with pytest.raises(IndexError):
        records[3]


def test_of_two_records_on_one_episode_the_last_one_counts() -> None:
    records = Records(SPECS)
    records.add(record(SPECS[3], steps=1))
    records.add(record(SPECS[3], steps=2))
    assert [result.steps for result in records] == [2]
    assert [records.has(spec.key) for spec in SPECS] == [False, False, False, True]


@pytest.mark.parametrize("known", [range(4), (0, 2, 3), (3,), ()], ids=["all", "some", "one", "none"])
def test_records_are_indexed_sliced_and_added_as_a_tuple_is(known: Sequence[int]) -> None:
    records, plain = Records(SPECS), tuple(record(SPECS[place], steps=place) for place in known)
    for result in reversed(plain):
        records.add(result)
        assert records[0] == result  # what an index meant before is not remembered
    for index in range(-len(plain), len(plain)):
        assert records[index] == records[np.int64(index)] == plain[index]
    for cut in (slice(None), slice(1, None), slice(None, None, -2), slice(-1, None)):
        assert records[cut] == plain[cut]
    for beyond in (len(plain), -len(plain) - 1):
        with pytest.raises(IndexError):
            records[beyond]
    assert records + records == plain + plain
    assert records + plain == plain + records == plain + plain
    assert records * 2 == 2 * records == plain * 2
    with pytest.raises(TypeError):
        records + list(plain)
    assert msgspec.json.decode(msgspec.json.encode(tuple(records)), type=tuple[EpisodeResult, ...]) == plain


def test_an_index_into_many_records_does_not_look_at_all_of_them() -> None:
    class Watched(array):  # type: ignore[type-arg]
        walks = 0

        def __iter__(self) -> Iterator[int]:
            Watched.walks += 1
            return super().__iter__()

    for known in (SPECS, SPECS[1:]):  # where one is missing, the places are found once
        records = Records(SPECS)
        records._starts = Watched("q", records._starts)
        for spec in known:
            records.add(record(spec))
        Watched.walks = 0
        for _ in range(3):
            assert [records[index].key for index in range(len(records))] == [spec.key for spec in known]
        assert Watched.walks == (known is not SPECS)


def test_the_text_of_records_tells_how_many_there_are_and_what_one_is() -> None:
    records = Records(SPECS)
    assert repr(records) == "<0 records>"
    records.add(RECORDS[0])
    assert repr(records) == f"<1 records: {RECORDS[0]!r}>"
    records.add(RECORDS[1])
    assert repr(records) == f"<2 records: {RECORDS[0]!r}, …>"


def test_a_text_that_is_no_unicode_is_kept_as_the_journal_keeps_it() -> None:
    records = Records(SPECS)
    error = EpisodeFailure(type="Odd", message="half a \ud800 pair", traceback="\udcff")
    broken = record(SPECS[0], outcome=Outcome.ERROR, success=None, error=error)
    records.add(broken)
    assert records[0] == msgspec.json.decode(encode_json(broken), type=EpisodeResult)
    assert records[0].error == EpisodeFailure(type="Odd", message="half a \\ud800 pair", traceback="\\udcff")
