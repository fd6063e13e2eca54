"""LIBERO's options (`--set`), and the values that each published protocol gives them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from msgspec import Struct

from rollout.envs.cameras import CAMERA_OPTIONS, CameraNames
from rollout.envs.options import one_of, switch, whole_number

__all__ = ["HORIZONS", "OPTIONS", "PROTOCOLS", "LiberoOptions"]

SUITES: Final = ("spatial", "object", "goal", "10", "90")
# Of the scenes of all 130 tasks.
SCENE_CAMERAS: Final = (
    "agentview",
    "robot0_eye_in_hand",
    "frontview",
    "birdview",
    "sideview",
    "galleryview",
    "paperview",
    "robot0_robotview",
)
# Robosuite's camera -> LeRobot's name for it.
CAMERA_NAMES: Final[Mapping[str, str]] = {"agentview": "image", "robot0_eye_in_hand": "image2"}

_LEROBOT: Final[Mapping[str, str]] = {
    "height": "360",
    "width": "360",
    "resize": "none",
    "flip": "both",
    "settle_steps": "10",
    "control_mode": "relative",
    "gripper": "continuous",
    "quaternion": "float32",
    "init_states": "true",
    # LIBERO draws once more for each reset that a scene has had: as in a loop over one task's episodes.
    "earlier_resets": "episode",
    # A little above the longest demonstration of each suite.
    "horizon.spatial": "280",
    "horizon.object": "280",
    "horizon.goal": "300",
    "horizon.10": "520",
    "horizon.90": "400",
}
_OPENPI: Final[Mapping[str, str]] = {
    **_LEROBOT,
    "height": "256",
    "width": "256",
    "resize": "224",
    "quaternion": "float64",
    "horizon.spatial": "220",
}
# huggingface/lerobot src/lerobot/envs/libero.py; Physical-Intelligence/openpi examples/libero/main.py;
# allenai/vla-evaluation-harness src/vla_eval/benchmarks/libero/benchmark.py.
PROTOCOLS: Final[Mapping[str, Mapping[str, str]]] = {
    "lerobot": _LEROBOT,
    "openpi": _OPENPI,
    "vla-eval": {**_OPENPI, "resize": "none", "gripper": "binary", "quaternion": "antipodal"},
}
HORIZONS: Final[Mapping[str, int]] = {suite: int(_LEROBOT[f"horizon.{suite}"]) for suite in SUITES}

OPTIONS: Final[Mapping[str, str]] = {
    "height": "height in pixels at which the cameras render",
    "width": "width in pixels at which the cameras render",
    "resize": "pictures fitted into N x N pixels with black borders (bilinear), or none",
    "flip": "picture axes that are turned round: both (by 180 degrees), vertical, or none",
    "settle_steps": "no-op steps after a reset, counted nowhere",
    "control_mode": "how actions are meant: relative or absolute",
    "gripper": "the action's last value: continuous (as given) or binary (-1 below 0, else 1)",
    "quaternion": "how the hand's quaternion becomes axis times angle: float32 or float64 (the way round that it "
    "tells), or antipodal (float64, the shorter way round)",
    "init_states": "start from LIBERO's fixed initial states: true, or false: from the seed",
    "earlier_resets": "resets that the scene counts as having had, which shift where LIBERO's draws place fixtures: "
    "episode (as many as the episode's number) or a whole number",
    **{f"horizon.{suite}": f"most steps of an episode of libero:{suite}" for suite in SUITES},
    "reset": "fast (default: the compiled scene is used again), or hard: compiled anew, 50 times slower, the same "
    "bits",
    **CAMERA_OPTIONS,
}


class LiberoOptions(Struct, frozen=True, kw_only=True):
    """The options' values, read."""

    height: int
    width: int
    resize: int | None
    flip: str
    settle_steps: int
    relative: bool
    binary_gripper: bool
    quaternion: str
    init_states: bool
    earlier_resets: int | None  # None: as many as the episode's number
    horizons: dict[str, int]
    fast_reset: bool
    cameras: CameraNames

    @classmethod
    def parse(cls, given: Mapping[str, str]) -> LiberoOptions:
        """Read `given`; what it leaves out is the protocol `lerobot`'s. Raises `UsageError`."""
        values = {**_LEROBOT, **given}

        def number(name: str, *, least: int, most: int) -> int:
            return whole_number(values, name, least, least=least, most=most)

        return cls(
            height=number("height", least=16, most=4096),
            width=number("width", least=16, most=4096),
            resize=None if values["resize"] == "none" else number("resize", least=16, most=4096),
            flip=one_of(values, "flip", ("both", "vertical", "none")),
            settle_steps=number("settle_steps", least=0, most=1000),
            relative=one_of(values, "control_mode", ("relative", "absolute")) == "relative",
            binary_gripper=one_of(values, "gripper", ("continuous", "binary")) == "binary",
            quaternion=one_of(values, "quaternion", ("float32", "float64", "antipodal")),
            init_states=switch(values, "init_states", default=True),
            earlier_resets=None
            if values["earlier_resets"] == "episode"
            else number("earlier_resets", least=0, most=1000),
            horizons={suite: number(f"horizon.{suite}", least=1, most=10**6) for suite in SUITES},
            fast_reset=one_of(values, "reset", ("fast", "hard")) == "fast",
            cameras=CameraNames.parse(values, CAMERA_NAMES, SCENE_CAMERAS),
        )

    @property
    def picture(self) -> tuple[int, int]:
        """Height and width of the pictures that a policy gets, in pixels."""
        return (self.height, self.width) if self.resize is None else (self.resize, self.resize)
