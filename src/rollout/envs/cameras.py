"""Which cameras an observation has, and under which names: `--set camera.<of the simulator>=<for the policy>`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

import numpy as np
from msgspec import Struct

from rollout.config import nearest
from rollout.envs.observations import image, image_key
from rollout.envs.options import whole_number
from rollout.errors import UsageError
from rollout.spaces import Space
from rollout.types import Observation, ObservationRequest

__all__ = ["CAMERA_OPTIONS", "CameraNames"]

_PREFIX: Final = "camera."
_EMPTY: Final = (
    "empty_camera_{}"  # LeRobot's name for a camera that a policy was made with and no simulator has
)

CAMERA_OPTIONS: Final[Mapping[str, str]] = {
    "camera.*": "the name of one of the simulator's cameras for the policy, e.g. camera.agentview=camera1",
    "empty_cameras": "how many black pictures to add, observation.images.empty_camera_0 and so on (default 0)",
}


class CameraNames(Struct, frozen=True):
    """The cameras of an observation."""

    names: dict[str, str]  # the simulator's camera -> the policy's name for it
    empty: int  # cameras that there are not

    @classmethod
    def parse(
        cls, options: Mapping[str, str], defaults: Mapping[str, str], known: Sequence[str]
    ) -> CameraNames:
        """`defaults`, renamed and added to as `options` say; `known` are the simulator's. Raises `UsageError`."""
        names = dict(defaults)
        for option, name in options.items():
            camera = option.removeprefix(_PREFIX)
            if camera == option:
                continue
            if camera not in known:
                raise UsageError(
                    f"--set {option}={name}: no such camera{nearest(camera, known)} (known: {', '.join(known)})"
                )
            if not name:
                raise UsageError(f"--set {option}=: give the name that the policy knows it by")
            names[camera] = name
        for camera, name in names.items():
            if list(names.values()).count(name) > 1:
                raise UsageError(f"--set {_PREFIX}{camera}={name}: two cameras cannot have one name")
        return cls(names, whole_number(options, "empty_cameras", 0, least=0, most=16))

    def spaces(self, height: int, width: int) -> dict[str, Space]:
        """The observation space of each, by key: uint8 (height, width, 3)."""
        return {
            key: image(height, width) for key in (*map(image_key, self.names.values()), *self._empty_keys())
        }

    def wanted(self, request: ObservationRequest) -> tuple[str, ...]:
        """The simulator's cameras that `request` asks for."""
        return tuple(camera for camera, name in self.names.items() if request.wants(image_key(name)))

    def key(self, camera: str) -> str:
        """The observation key of the simulator's `camera`."""
        return image_key(self.names[camera])

    def blank(self, request: ObservationRequest, height: int, width: int) -> Observation:
        """The black pictures that `request` asks for."""
        wanted = [key for key in self._empty_keys() if request.wants(key)]
        return {key: np.zeros((height, width, 3), np.uint8) for key in wanted}

    @property
    def empty_names(self) -> tuple[str, ...]:
        """The names of the cameras that there are not."""
        return tuple(_EMPTY.format(index) for index in range(self.empty))

    def _empty_keys(self) -> list[str]:
        return [image_key(name) for name in self.empty_names]
