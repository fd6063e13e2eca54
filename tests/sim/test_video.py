"""Videos are read back: a player must open them, and see what was rendered."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rollout.errors import ResultsError, UsageError
from rollout.sim.video import VideoWriter, current_umask, require_encoder, video_path
from rollout.types import EpisodeSpec

av = pytest.importorskip("av")


def frame(value: int, height: int = 64, width: int = 64) -> np.ndarray:
    return np.full((height, width, 3), value, np.uint8)


def write(path: Path, *frames: np.ndarray, fps: int = 10) -> str | None:
    writer = VideoWriter(path, fps)
    for picture in frames:
        writer.add(picture)
    return writer.finish(keep=True)


class Film:
    """A video, decoded."""

    def __init__(self, path: Path | str) -> None:
        with av.open(str(path)) as container:
            stream = container.streams.video[0]
            self.codec, self.pix_fmt = stream.codec_context.name, stream.codec_context.pix_fmt
            self.size = (stream.height, stream.width)
            self.rate = stream.average_rate
            self.seconds = float(stream.duration * stream.time_base)
            self.frames = [picture.to_ndarray(format="rgb24") for picture in container.decode(stream)]


def spec(
    suite: str = "libero:spatial", task: str = "reach-v3", task_id: int = 0, episode: int = 3
) -> EpisodeSpec:
    return EpisodeSpec(suite=suite, task=task, task_id=task_id, episode=episode, seed=0, horizon=1)


def test_a_video_decodes_to_the_frames_that_were_added(tmp_path: Path) -> None:
    brightness = list(range(20, 220, 10))
    path = write(tmp_path / "deep" / "er" / "episode_0000.mp4", *map(frame, brightness), fps=25)
    assert path == str(tmp_path / "deep" / "er" / "episode_0000.mp4")
    film = Film(path)
    assert (film.codec, film.pix_fmt, film.size) == ("h264", "yuv420p", (64, 64))
    assert film.rate == Fraction(25)
    assert film.seconds == pytest.approx(len(brightness) / 25)
    means = [picture.mean() for picture in film.frames]
    assert means == pytest.approx(brightness, abs=4)


def test_colours_and_places_survive(tmp_path: Path) -> None:
    picture = np.zeros((64, 96, 3), np.uint8)
    picture[:32, :48], picture[:32, 48:], picture[32:, :48] = (255, 0, 0), (0, 255, 0), (0, 0, 255)
    path = write(tmp_path / "a.mp4", picture, picture)
    (seen, _) = Film(path).frames
    assert seen[16, 24] == pytest.approx([255, 0, 0], abs=25)
    assert seen[16, 72] == pytest.approx([0, 255, 0], abs=25)
    assert seen[48, 24] == pytest.approx([0, 0, 255], abs=25)
    assert seen[48, 72] == pytest.approx([0, 0, 0], abs=25)


@pytest.mark.parametrize(
    ("height", "width", "size"),
    [
        (63, 65, (64, 66)),
        (1, 1, (2, 2)),
        (64, 33, (64, 34)),
        (33, 64, (34, 64)),
    ],
)
def test_odd_sizes_are_padded_with_the_last_row_and_column(
    tmp_path: Path, height: int, width: int, size: tuple[int, int]
) -> None:
    path = write(tmp_path / "a.mp4", frame(120, height, width), frame(130, height, width))
    film = Film(path)
    assert film.size == size
    assert len(film.frames) == 2
    assert film.frames[0][-1, -1] == pytest.approx([120] * 3, abs=4)  # not black


def test_a_frame_of_another_size_is_scaled_to_the_first(tmp_path: Path) -> None:
    path = write(tmp_path / "a.mp4", frame(50, 64, 64), frame(100, 31, 97), frame(150, 64, 64))
    film = Film(path)
    assert [picture.shape for picture in film.frames] == [(64, 64, 3)] * 3
    assert [picture.mean() for picture in film.frames] == pytest.approx([50, 100, 150], abs=4)


def test_a_strided_frame_may_be_overwritten_at_once(tmp_path: Path) -> None:
    writer = VideoWriter(tmp_path / "a.mp4", 10)
    buffer = np.zeros((64, 64, 3), np.uint8)
    for value in (40, 200):
        buffer[:] = value
        buffer[:32] = 0
        writer.add(buffer[::-1, ::-1])
        buffer[:] = 7
    path = writer.finish(keep=True)
    assert path is not None
    for seen, value in zip(Film(path).frames, (40, 200), strict=True):
        assert seen[:30].mean() == pytest.approx(value, abs=5)
        assert seen[34:].mean() == pytest.approx(0, abs=5)


def test_the_final_name_appears_only_when_the_file_is_complete(tmp_path: Path) -> None:
    path = tmp_path / "a.mp4"
    writer = VideoWriter(path, 10)
    for value in range(50):
        writer.add(frame(value))
        assert not path.exists()
    assert [entry.name for entry in tmp_path.iterdir()] == ["a.partial.mp4"]
    assert writer.finish(keep=True) == str(path)
    assert [entry.name for entry in tmp_path.iterdir()] == ["a.mp4"]


def test_an_unwanted_video_leaves_nothing(tmp_path: Path) -> None:
    writer = VideoWriter(tmp_path / "a.mp4", 10)
    writer.add(frame(1))
    assert writer.finish(keep=False) is None
    assert list(tmp_path.iterdir()) == []


def test_abort_leaves_nothing_and_may_be_repeated(tmp_path: Path) -> None:
    writer = VideoWriter(tmp_path / "a.mp4", 10)
    writer.add(frame(1))
    writer.abort()
    writer.abort()
    assert list(tmp_path.iterdir()) == []


def test_a_video_without_frames_is_no_file(tmp_path: Path) -> None:
    assert VideoWriter(tmp_path / "a.mp4", 10).finish(keep=True) is None
    assert list(tmp_path.iterdir()) == []


def test_what_a_killed_worker_left_behind_is_overwritten(tmp_path: Path) -> None:
    (tmp_path / "a.partial.mp4").write_bytes(b"half a video")
    path = write(tmp_path / "a.mp4", frame(90), frame(90))
    assert len(Film(path).frames) == 2
    assert [entry.name for entry in tmp_path.iterdir()] == ["a.mp4"]


def test_a_relative_path_with_a_colon_is_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert write(Path("run:1/a.mp4"), frame(90)) == "run:1/a.mp4"
    assert len(Film(tmp_path / "run:1" / "a.mp4").frames) == 1


@pytest.mark.parametrize(
    "bad",
    [
        np.zeros((4, 4, 3), np.float32),
        np.zeros((4, 4), np.uint8),
        np.zeros((4, 4, 4), np.uint8),
        np.zeros((0, 4, 3), np.uint8),
    ],
)
def test_what_is_no_frame_is_refused_with_its_dtype_and_shape(tmp_path: Path, bad: np.ndarray) -> None:
    writer = VideoWriter(tmp_path / "a.mp4", 10)
    with pytest.raises(ValueError, match=rf"{bad.dtype} \({bad.shape[0]}, 4"):
        writer.add(bad)


def test_a_folder_that_cannot_be_made_is_one_clear_line(tmp_path: Path) -> None:
    (tmp_path / "videos").write_text("a file")
    with pytest.raises(ResultsError, match=r"^cannot write the video .*a\.mp4: \w.*") as caught:
        VideoWriter(tmp_path / "videos" / "a.mp4", 10)
    assert "\n" not in str(caught.value)


def test_a_folder_that_vanishes_is_one_clear_line(tmp_path: Path) -> None:
    writer = VideoWriter(tmp_path / "gone" / "a.mp4", 10)
    (tmp_path / "gone").rmdir()
    with pytest.raises(ResultsError, match=r"a\.mp4: No such file or directory"):
        writer.add(frame(1))


FULL_DISK = """
import resource, sys
import numpy as np
from rollout.errors import ResultsError
from rollout.sim.video import VideoWriter

resource.setrlimit(resource.RLIMIT_FSIZE, (8_000, 8_000))  # Python ignores SIGXFSZ: writes fail with EFBIG
writer = VideoWriter(sys.argv[1], 10)
rng = np.random.default_rng(0)
try:
    for _ in range(int(sys.argv[2])):
        writer.add(rng.integers(0, 256, (128, 128, 3), np.uint8))
    writer.finish(keep=True)
except ResultsError as exc:
    print(exc)
"""


@pytest.mark.parametrize("frames", [1, 60])  # the disk is full at the end, or in the middle
def test_a_disk_that_fills_up_is_one_clear_line_and_leaves_nothing(tmp_path: Path, frames: int) -> None:
    command = [sys.executable, "-c", FULL_DISK, str(tmp_path / "a.mp4"), str(frames)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout == f"cannot write the video {tmp_path}/a.mp4: File too large\n"
    assert list(tmp_path.iterdir()) == []


def test_a_picture_that_the_encoder_refuses_is_no_full_disk_and_leaves_nothing(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="the video cannot be encoded"):
        VideoWriter(tmp_path / "a.mp4", 10).add(np.zeros((2, 20_000, 3), np.uint8))
    assert list(tmp_path.iterdir()) == []


def test_without_pyav_one_line_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    require_encoder()
    monkeypatch.setitem(sys.modules, "av", None)
    with pytest.raises(UsageError, match=r"^videos need PyAV.*rollout-engine\[video\]"):
        require_encoder()
    with pytest.raises(UsageError, match=r"^videos need PyAV.*rollout-engine\[video\]"):
        VideoWriter(tmp_path / "a.mp4", 10)


def test_importing_the_module_does_not_import_pyav() -> None:
    code = "import sys, rollout.sim.video; sys.exit('av' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], timeout=60, check=False).returncode == 0


def test_videos_are_named_by_suite_task_and_episode() -> None:
    assert video_path("out", spec()) == Path("out/videos/libero_spatial/0_reach-v3/episode_0003.mp4")


@given(st.text(), st.text(), st.integers(0, 200), st.integers(0, 99999))
@settings(max_examples=200, deadline=None)
def test_no_name_leaves_the_output_folder(suite: str, task: str, task_id: int, episode: int) -> None:
    path = video_path("/out", spec(suite, task, task_id, episode))
    below = path.relative_to("/out").parts
    assert len(below) == 4
    assert below[0] == "videos"
    assert path == Path(*path.parts)
    for part in below:
        assert part.isascii()
        assert "/" not in part
        assert not part.startswith(".")
        assert 0 < len(part) <= 100


def test_a_hostile_name_is_one_folder() -> None:
    path = video_path("out", spec(suite="gym:../../etc", task="../" * 50 + "x\n\0y"))
    assert path.parts[:2] == ("out", "videos")
    assert len(path.parts) == 5
    assert ".." not in path.parts


@pytest.mark.parametrize(
    ("first", "second"),
    [
        (spec(suite="gym:m:a/b"), spec(suite="gym:m:a_b")),
        (spec(suite="gym:" + "x" * 200 + "1"), spec(suite="gym:" + "x" * 200 + "2")),
        (spec(task="a/b", task_id=1), spec(task="a b", task_id=2)),
        (spec(episode=1), spec(episode=11)),
    ],
)
def test_distinct_episodes_have_distinct_videos(first: EpisodeSpec, second: EpisodeSpec) -> None:
    assert video_path("out", first) != video_path("out", second)


def test_a_link_in_place_of_the_unfinished_file_is_never_written_through(tmp_path: Path) -> None:
    victim = tmp_path / "victim"
    victim.write_bytes(b"mine")
    (tmp_path / "film.partial.mp4").symlink_to(victim)
    writer = VideoWriter(tmp_path / "film.mp4", fps=20)
    writer.add(np.zeros((16, 16, 3), np.uint8))
    assert writer.finish() == str(tmp_path / "film.mp4")
    assert victim.read_bytes() == b"mine"


@pytest.mark.parametrize("umask", [0o022, 0o077])
def test_who_may_read_a_video_is_not_for_a_simulator_to_say(tmp_path: Path, umask: int) -> None:
    film = tmp_path / "suite" / "task" / "film.mp4"
    before = os.umask(0o777)  # the simulator's
    try:
        writer = VideoWriter(film, 20, umask=umask)
        writer.add(frame(1))
        writer.finish()
        assert current_umask() == 0o777  # which it keeps
    finally:
        os.umask(before)
    assert stat.S_IMODE(film.stat().st_mode) == 0o666 & ~umask
    for folder in film.parents[:2]:
        assert stat.S_IMODE(folder.stat().st_mode) == 0o777 & ~umask
