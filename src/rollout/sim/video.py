"""Episode videos: encoded in the worker that renders them, so that no frame ever crosses the pipe."""

from __future__ import annotations

import contextlib
import importlib.util
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from hashlib import blake2b
from pathlib import Path
from types import ModuleType
from typing import Any, Final

import numpy as np

from rollout.errors import ResultsError, UsageError
from rollout.types import EpisodeSpec

__all__ = ["VideoWriter", "current_umask", "require_encoder", "video_path"]

_UNSAFE: Final = re.compile(r"[^A-Za-z0-9._-]+")
_LONGEST: Final = 80  # characters of one folder name; file systems take 255 bytes


class VideoWriter:
    """Writes one H.264 MP4 (yuv420p, 4:2:0, no sound): `add` every frame, then `finish` or `abort`.

    Frames go to `<name>.partial.mp4` beside `path`; `finish` renames it, so a file called `path` is complete.
    The first frame sets the size, padded to even numbers by repeating the last row and column, for 4:2:0.
    A later frame of another size is scaled to it: a picture to look at must not cost the episode's result.
    """

    def __init__(self, path: str | Path, fps: int, *, umask: int | None = None) -> None:
        """Make the folder of `path`. `fps` is frames per second of the video; `umask` decides who may read it (None:
        this process's own, which a simulator may have changed).

        Raises `UsageError` where PyAV is missing and `ResultsError` where the folder cannot be made.
        """
        self._path = Path(path)
        self._partial = self._path.with_name(f"{self._path.stem}.partial.mp4")
        self._fps, self._umask = fps, umask
        self._av = _import_av()
        self._container: Any = None  # opened by the first frame, which has the size
        self._stream: Any = None
        try:
            with _umask(umask):
                self._path.parent.mkdir(parents=True, exist_ok=True)
        except OSError as exc:
            raise self._error(exc) from exc

    def add(self, frame: np.ndarray) -> None:
        """Encode one frame, uint8 (height, width, 3), RGB. It may change afterwards.

        Raises `ValueError` for others, and where it cannot be encoded, and `ResultsError` where it cannot be written:
        the file is gone then.
        """
        if frame.dtype != np.uint8 or frame.ndim != 3 or frame.shape[2] != 3 or 0 in frame.shape:
            raise ValueError(f"a video frame is uint8 (height, width, 3), not {frame.dtype} {frame.shape}")
        try:
            if self._container is None:
                with _umask(self._umask):
                    self._open(*frame.shape[:2])
            self._encode(self._av.VideoFrame.from_ndarray(_even(frame), format="rgb24"))
        except (OSError, self._av.error.FFmpegError) as exc:
            self.abort()
            raise self._error(exc) from exc

    def finish(self, keep: bool = True) -> str | None:
        """Complete the file and give it its name, or delete it. Returns its path, or None without a file.

        Raises `ValueError` where it cannot be encoded, `ResultsError` where it cannot be written: the file is gone
        then.
        """
        if self._container is None or not keep:
            self.abort()
            return None
        try:
            self._encode(None)
            container, self._container = self._container, None
            container.close()  # writes the index, without which no player opens the file
            self._partial.replace(self._path)
        except (OSError, self._av.error.FFmpegError) as exc:
            self.abort()
            raise self._error(exc) from exc
        return str(self._path)

    def abort(self) -> None:
        """Delete what was written so far. Never raises; idempotent."""
        container, self._container = self._container, None
        with contextlib.suppress(OSError, self._av.error.FFmpegError):  # a full disk, met before
            if container is not None:
                container.close()
        with contextlib.suppress(OSError):  # the folder itself is gone: nothing is left to clean up
            self._partial.unlink(missing_ok=True)

    def _open(self, height: int, width: int) -> None:
        self._partial.unlink(missing_ok=True)  # of a worker that was killed; or a link that leads elsewhere
        # "file:": FFmpeg would read a colon in a relative path as a protocol's. faststart: the index goes to
        # the front, so that a browser plays the file while it loads.
        self._container = self._av.open(
            f"file:{self._partial}", "w", format="mp4", options={"movflags": "+faststart"}
        )
        self._stream = self._container.add_stream("libx264", rate=self._fps)
        self._stream.width, self._stream.height = width + width % 2, height + height % 2
        self._stream.pix_fmt = "yuv420p"
        self._stream.options = {"crf": "23", "preset": "veryfast"}
        # One thread: every core has a worker of its own, and more threads would steal their neighbours' time.
        self._stream.codec_context.thread_count = 1
        self._container.start_encoding()  # makes the file now, not when the first packet leaves the encoder

    def _encode(self, picture: Any) -> None:
        for packet in self._stream.encode(picture):  # scales and converts to yuv420p, in this thread
            self._container.mux(packet)

    def _error(self, exc: Exception) -> ResultsError | ValueError:
        if not isinstance(exc, OSError):  # the encoder's, of a picture that it does not take
            return ValueError(f"the video cannot be encoded: {exc}")
        reason = getattr(exc, "strerror", None) or str(exc)
        return ResultsError(f"cannot write the video {self._path}: {reason}")


def video_path(out: str | Path, spec: EpisodeSpec) -> Path:
    """Where the video of an episode belongs: `OUT/videos/<suite>/<task_id>_<task>/episode_0003.mp4`.

    Suites and tasks may have any name: each becomes one folder name of letters, digits and `._-`, of bounded
    length and never starting with a dot, so nothing leaves `out`. Distinct episodes get distinct paths.
    """
    folder = f"{spec.task_id}_{_safe(spec.task)}"
    suite = spec.suite.replace(":", "_", 1)  # libero:spatial
    safe = _safe(suite)
    if safe != suite:  # something was lost: tell "a/b" from "a_b"
        safe = f"{safe}-{blake2b(spec.suite.encode(errors='surrogatepass'), digest_size=4).hexdigest()}"
    return Path(out) / "videos" / safe / folder / f"episode_{spec.episode:04d}.mp4"


def current_umask() -> int:
    """This process's umask, which can only be read by setting it."""
    mask = os.umask(0o077)
    os.umask(mask)
    return mask


@contextmanager
def _umask(mask: int | None) -> Iterator[None]:
    before = None if mask is None else os.umask(mask)
    try:
        yield
    finally:
        if before is not None:
            os.umask(before)


def require_encoder() -> None:
    """Raise `UsageError` where PyAV is missing, without importing it."""
    if importlib.util.find_spec("av") is None:
        raise UsageError("videos need PyAV; run: pip install 'rollout-engine[video]'")


def _safe(name: str) -> str:
    return _UNSAFE.sub("_", name).lstrip(".")[:_LONGEST] or "_"


def _import_av() -> ModuleType:
    try:
        import av
    except ImportError as exc:
        raise UsageError(f'videos need PyAV: run `pip install "rollout-engine[video]"` ({exc})') from exc
    module: ModuleType = av
    return module


def _even(frame: np.ndarray) -> np.ndarray:
    height, width = frame.shape[:2]
    if height % 2 or width % 2:
        frame = np.pad(frame, ((0, height % 2), (0, width % 2), (0, 0)), mode="edge")
    return np.ascontiguousarray(frame)
