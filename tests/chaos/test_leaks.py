"""What evaluations leave behind in the process that asked for them: nothing."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parent
DEADLINE_S = 280
WARM = 5  # evaluations after which all is imported and every cache has its size
GROWTH = 1.05
ARENA = 1 << 20  # Python's allocator takes memory by so much, and one more or less depends on what came when


def measured(mode: str, count: int, cwd: Path) -> list[dict[str, int]]:
    done = subprocess.run(
        [sys.executable, str(HERE / "leaks.py"), mode, str(count)],
        cwd=cwd,
        env=os.environ | {"PYTHONPATH": str(HERE.parent)},
        capture_output=True,
        text=True,
        timeout=DEADLINE_S,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    samples: list[dict[str, int]] = json.loads(done.stdout)
    return samples


@pytest.mark.parametrize(
    ("mode", "count"),
    [("kept", 50), ("fresh", 50)],
)
def test_evaluations_one_after_the_other_leave_nothing_in_the_process(
    mode: str, count: int, tmp_path: Path
) -> None:
    samples = measured(mode, count, tmp_path)
    assert len(samples) == count
    warm, last = samples[WARM], samples[-1]
    for what, slack in (
        ("descriptors", 0),
        ("threads", 1),
        ("children", 0),
    ):  # a thread may be just about to end
        assert last[what] <= warm[what] + slack, f"{what}: {[s[what] for s in samples]}"
    assert last["children"] == (1 if mode == "kept" else 0)  # the forkserver, for the evaluations to come
    assert last["rss"] < GROWTH * warm["rss"], [s["rss"] for s in samples]


def test_ten_thousand_episodes_leave_the_process_as_large_as_one_thousand(tmp_path: Path) -> None:
    first, *_, last = samples = measured("long", 10_000, tmp_path)
    assert len(samples) == 11
    assert last["rss"] < GROWTH * first["rss"] + ARENA, [s["rss"] for s in samples]
    assert last["descriptors"] <= first["descriptors"]
    assert last["children"] == 0


@pytest.mark.soak
def test_a_hundred_thousand_episodes_add_what_their_records_take(tmp_path: Path) -> None:
    first, *_, last = measured("long", 100_000, tmp_path)
    assert last["rss"] - first["rss"] < 100_000 * 300  # bytes
