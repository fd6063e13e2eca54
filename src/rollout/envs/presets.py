"""Gymnasium environments with LeRobot's settings: `pusht:push_t`, `aloha:insertion` and `aloha:transfer_cube`.

The semantics are those of huggingface/lerobot 0.6.1, src/lerobot/envs/configs.py (`PushtEnv`, `AlohaEnv`), with
gym-pusht 0.1.8 and gym-aloha 0.1.5: observations `pixels_agent_pos`, success `info["is_success"]`, which also
ends the episode. Frames are made only where something reads them; upstream renders at every step.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from importlib.metadata import PackageNotFoundError, version
from typing import Any, ClassVar, Literal

from rollout.config import nearest
from rollout.envs.base import Requirement
from rollout.envs.cameras import CAMERA_OPTIONS, CameraNames
from rollout.envs.gymnasium import GymnasiumSimulator
from rollout.envs.options import whole_number
from rollout.envs.presets_upstream import Aloha, PushT, import_aloha, import_pusht
from rollout.errors import UsageError
from rollout.types import SuiteInfo, Task

__all__ = ["AlohaSimulator", "PushTSimulator"]


class _Preset(GymnasiumSimulator):
    """A family of which every suite is one environment."""

    _instructions: ClassVar[Mapping[str, str]]  # by suite, in the words of LeRobot's data sets
    _horizon: ClassVar[int]
    _camera: ClassVar[str]
    _packages: ClassVar[tuple[str, ...]]  # that decide the numbers

    @classmethod
    def expand(cls, name: str) -> tuple[str, ...]:
        """`("name",)`, or all suites for `all`. Raises `UsageError`."""
        if name == "all" and name in cls.names:
            return tuple(cls._instructions)
        if name not in cls._instructions:
            hint = nearest(name, cls.names)
            raise UsageError(f"{cls.family} has no suite {name!r}{hint} (see `rollout list {cls.family}`)")
        return (name,)

    @classmethod
    def describe(cls, name: str, options: Mapping[str, str]) -> SuiteInfo:
        """The suite's one task, called as the suite. Raises `UsageError`."""
        cls._parse(options)
        [name] = cls.expand(name)
        task = Task(task=name, task_id=0, instruction=cls._instructions[name], horizon=cls._horizon)
        return SuiteInfo(suite=f"{cls.family}:{name}", tasks=(task,), versions=_versions(cls._packages))

    @classmethod
    def _parse(cls, options: Mapping[str, str]) -> tuple[int, int, CameraNames]:
        """Height and width of the pictures, and the cameras."""
        values = {**cls.protocols["lerobot"], **options}
        height, width = (whole_number(values, name, 0, least=16, most=4096) for name in ("height", "width"))
        return height, width, CameraNames.parse(values, {cls._camera: cls._camera}, [cls._camera])

    def _instruction(self, info: Mapping[str, Any]) -> str:
        return self._task.instruction


class PushTSimulator(_Preset):
    """PushT (Chi et al. 2023): push a T-shaped block onto its mark, in the plane, at 10 Hz.

    Observations: `observation.images.image`, uint8 (height, width, 3), by default 96 x 96, which is what LeRobot's
    environment delivers although its configuration speaks of 384; `observation.state`, float32 (2,): the agent's
    position; `observation.environment_state`, float32 (16,): the block's eight corners. Positions are pixels of
    a square of 512. LeRobot calls its one camera `observation.image`; here it is named as every other.

    Actions: float32 (2,), the position to go to.
    """

    family: ClassVar[str] = "pusht"
    names: ClassVar[tuple[str, ...]] = ("push_t",)
    aliases: ClassVar[Mapping[str, str]] = dict.fromkeys(
        ("pusht", "pusht:PushT-v0", "gym_pusht/PushT-v0"), "pusht:push_t"
    )
    requires: ClassVar[tuple[Requirement, ...]] = (
        Requirement("gym_pusht", "pip install 'rollout-engine[pusht]'"),
    )
    options: ClassVar[Mapping[str, str]] = {
        "height": "height of the pictures in pixels (default 96)",
        "width": "width of the pictures in pixels (default 96)",
        **CAMERA_OPTIONS,
    }
    protocols: ClassVar[Mapping[str, Mapping[str, str]]] = {"lerobot": {"height": "96", "width": "96"}}
    needs_gl: ClassVar[Literal["always", "cameras", "never"]] = "never"
    worker_memory_gb: ClassVar[float] = 0.2
    build_s: ClassVar[float] = 0.6
    step_s: ClassVar[float] = 0.0005

    _instructions = {"push_t": "Push the T-shaped block onto the T-shaped target."}  # noqa: RUF012
    _horizon = 300
    _camera = "image"
    _packages = ("gym-pusht", "pymunk", "shapely", "pygame", "opencv-python", "gymnasium")
    _success_rule = "the block covers more than 95 % of its mark, at any step"

    @classmethod
    def preload(cls) -> None:
        """Import gym-pusht (0.3 s)."""
        import_pusht()

    def _make(self) -> Any:
        return PushT(*self._parse(self._options))


class AlohaSimulator(_Preset):
    """Two ViperX arms in MuJoCo at 50 Hz (ALOHA, Zhao et al. 2023): insert a peg, or hand over a cube.

    Observations: `observation.images.top`, uint8 (height, width, 3), by default 480 x 640; `observation.state`,
    float32 (14,): for each arm six joint angles in radians and the gripper's opening, 0 closed and 1 open.

    Actions: float32 (14,), the same quantities as targets, passed on as they are: the space says [-1, 1], as
    upstream's does, but a policy goes beyond it. One instruction per suite; LeRobot's environment has none and
    gives its policy the name of the task instead.
    """

    family: ClassVar[str] = "aloha"
    names: ClassVar[tuple[str, ...]] = ("insertion", "transfer_cube", "all")
    aliases: ClassVar[Mapping[str, str]] = {"aloha": "aloha:all"} | {
        f"{prefix}{task}": f"aloha:{name}"
        for name, task in (("insertion", "AlohaInsertion-v0"), ("transfer_cube", "AlohaTransferCube-v0"))
        for prefix in ("aloha:", "gym_aloha/")
    }
    requires: ClassVar[tuple[Requirement, ...]] = (
        Requirement("gym_aloha", "pip install 'rollout-engine[aloha]'"),
    )
    options: ClassVar[Mapping[str, str]] = {
        "height": "height of the pictures in pixels (default 480)",
        "width": "width of the pictures in pixels (default 640)",
        **CAMERA_OPTIONS,
    }
    protocols: ClassVar[Mapping[str, Mapping[str, str]]] = {"lerobot": {"height": "480", "width": "640"}}
    needs_gl: ClassVar[Literal["always", "cameras", "never"]] = "cameras"
    worker_memory_gb: ClassVar[float] = 0.4
    build_s: ClassVar[float] = 1.0
    step_s: ClassVar[float] = 0.01  # where one step in ten is looked at

    _instructions = {  # noqa: RUF012
        "insertion": "Insert the peg into the socket.",
        "transfer_cube": "Pick up the cube with the right arm and transfer it to the left arm.",
    }
    _horizon = 400
    _camera = "top"
    _packages = ("gym-aloha", "dm-control", "mujoco", "gymnasium")
    _success_rule = "the reward is 4 (the peg touches the pin; the left gripper holds the cube), at any step"

    @classmethod
    def preload(cls) -> None:
        """Import gym-aloha with dm_control (0.5 s)."""
        import_aloha()

    def _make(self) -> Any:
        return Aloha(self._task.task, *self._parse(self._options))


def _versions(packages: tuple[str, ...]) -> dict[str, str]:
    found = {}
    for package in packages:
        with suppress(PackageNotFoundError):  # OpenCV has several
            found[package.replace("-", "_")] = version(package)
    return found
