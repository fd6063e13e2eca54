"""LIBERO's cameras, rendered only where someone looks."""

from __future__ import annotations

import functools
from collections.abc import Callable, Collection
from typing import Any, TypeAlias

import numpy as np

from rollout.envs.rendering import rendering

__all__ = ["Pictures", "padded", "turned"]

Sensor: TypeAlias = Callable[[Any], np.ndarray]  # from robosuite's observation cache to a picture


class Pictures:
    """The cameras' pictures of the present step, made only for the cameras that were expected.

    Robosuite renders every camera once in every step, at its own moment between two physics sub-steps,
    whether or not anyone looks: nine tenths of a step's time. Its observables stay enabled, because disabling
    one moves that moment; only the functions that they call are replaced.
    """

    def __init__(self) -> None:
        self._frames: dict[str, np.ndarray] = {}
        self._expected: Collection[str] = ()
        self._sensors: dict[str, Sensor] = {}
        self._blank = np.zeros((1, 1, 3), np.uint8)

    def expect(self, cameras: Collection[str]) -> None:
        """A new step: forget the last one's pictures; robosuite is to make those of `cameras` in passing."""
        self._frames = {}
        self._expected = cameras

    def made(self, camera: str) -> np.ndarray:
        """The picture that robosuite made in this step, as it is: uint8 (height, width, 3)."""
        assert camera in self._frames, f"robosuite did not sample {camera} in this step"  # never a stale one
        return self._frames[camera]

    def take(self, camera: str) -> np.ndarray:
        """The picture of this step, rendered now where robosuite made none."""
        if camera not in self._frames:
            with rendering:
                self._frames[camera] = self._sensors[camera]({})
        return self._frames[camera]

    def on_demand(self, create: Callable[..., tuple[list[Sensor], list[str]]]) -> Callable[..., Any]:
        """Robosuite's `_create_camera_sensors`, wrapping what it makes, which is anew at every hard reset."""

        def create_camera_sensors(cam_name: str, *args: Any, **kwargs: Any) -> tuple[list[Sensor], list[str]]:
            [sensor], names = create(cam_name, *args, **kwargs)
            self._sensors[cam_name] = sensor
            return [self._wrapped(sensor, cam_name)], names

        return create_camera_sensors

    def _wrapped(self, sensor: Sensor, camera: str) -> Sensor:
        @functools.wraps(sensor)  # robosuite reads the name and the modality off it
        def picture(cache: Any) -> np.ndarray:
            if camera not in self._expected:
                return self._blank
            with rendering:
                self._frames[camera] = raw = sensor(cache)
            return raw

        return picture


def turned(picture: np.ndarray, flip: str) -> np.ndarray:
    """A copy with the rows (`vertical`), rows and columns (`both`: by 180 degrees), or nothing turned round.

    Robosuite's pictures are upside down. LeRobot, openpi and vla-eval turn them by 180 degrees, which mirrors
    them, after the data sets' own convention.
    """
    view = {"both": picture[::-1, ::-1], "vertical": picture[::-1], "none": picture}[flip]
    return np.array(view, order="C")


def padded(picture: np.ndarray, size: int) -> np.ndarray:
    """The picture fitted into (size, size, 3) with black borders, as `resize_with_pad` of openpi-client has it."""
    from PIL import Image

    height, width, _ = picture.shape
    if (height, width) == (size, size):
        return picture
    ratio = max(width, height) / size
    fitted = Image.fromarray(picture).resize(
        (int(width / ratio), int(height / ratio)), Image.Resampling.BILINEAR
    )
    whole = Image.new("RGB", (size, size))
    whole.paste(fitted, (max(0, int((size - fitted.width) / 2)), max(0, int((size - fitted.height) / 2))))
    return np.array(whole)
