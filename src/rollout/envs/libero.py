"""LIBERO (`libero:<spatial | object | goal | 10 | 90>`), evaluated as `lerobot-eval` does it."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from functools import partial
from importlib.metadata import PackageNotFoundError, version
from typing import Any, ClassVar, Final, Literal

import numpy as np
from msgspec import Struct

from rollout.config import nearest
from rollout.envs import libero_files
from rollout.envs.base import Requirement, Step
from rollout.envs.libero_cameras import Pictures
from rollout.envs.observations import STATE, bounded, check_keys, image, image_key, vector
from rollout.envs.options import one_of, switch, whole_number
from rollout.errors import UsageError
from rollout.spaces import Box, Space
from rollout.types import EpisodeSpec, Observation, ObservationRequest, SuiteInfo, Task, TaskInfo

__all__ = ["LiberoSimulator", "axis_angle"]

FPS: Final = 20
# LeRobot's limits: a little above the longest demonstration of each suite.
HORIZONS: Final[Mapping[str, int]] = {"spatial": 280, "object": 280, "goal": 300, "10": 520, "90": 400}
# Robosuite's camera -> LeRobot's name for it.
CAMERAS: Final[Mapping[str, str]] = {"agentview": "image", "robot0_eye_in_hand": "image2"}
FILMED: Final = "agentview"
NO_OP: Final = (0, 0, 0, 0, 0, 0, -1)  # stay, gripper open


class _Settings(Struct, frozen=True, kw_only=True):
    height: int
    width: int
    settle_steps: int
    relative: bool
    init_states: bool

    @classmethod
    def parse(cls, options: Mapping[str, str]) -> _Settings:
        return cls(
            height=whole_number(options, "height", 360, least=16, most=4096),
            width=whole_number(options, "width", 360, least=16, most=4096),
            settle_steps=whole_number(options, "settle_steps", 10, least=0, most=1000),
            relative=one_of(options, "control_mode", ("relative", "absolute")) == "relative",
            init_states=switch(options, "init_states", default=True),
        )


class LiberoSimulator:
    """One LIBERO task (Liu et al. 2023): a Panda arm at 20 Hz, an instruction, 50 fixed initial states.

    Observations: `observation.images.image` (`agentview`) and `observation.images.image2` (the wrist), uint8
    (height, width, 3), 360 x 360 by default, turned by 180 degrees; `observation.state`, float32 (8,):
    position of the hand in metres, its orientation as axis times angle, positions of the two fingers.

    Actions: float32 (7,), passed on as they are. In `relative` mode displacement, rotation and gripper in
    [-1, 1] (-1 opens it); in `absolute` mode position in metres, axis times angle, and gripper.

    The semantics are those of huggingface/lerobot, src/lerobot/envs/libero.py and its LIBERO processor: seed,
    reset, initial state, 10 settle steps that count nowhere; the first success ends the episode.
    """

    family: ClassVar[str] = "libero"
    names: ClassVar[tuple[str, ...]] = (*HORIZONS, "all")
    aliases: ClassVar[Mapping[str, str]] = {f"libero_{name}": f"libero:{name}" for name in (*HORIZONS, "all")}
    # Not the asset packages: a checkout of LIBERO, or a folder of the user's, may hold the assets.
    requires: ClassVar[tuple[Requirement, ...]] = (
        Requirement("libero", libero_files.INSTALL),
        Requirement("robosuite", libero_files.INSTALL),
    )
    options: ClassVar[Mapping[str, str]] = {
        "control_mode": "how actions are meant: relative (default) or absolute",
        "height": "height of the pictures in pixels (default 360)",
        "init_states": "start from LIBERO's fixed initial states: true (default), or false: from the seed",
        "settle_steps": "no-op steps after a reset, counted nowhere (default 10)",
        "width": "width of the pictures in pixels (default 360)",
    }
    needs_gl: ClassVar[Literal["always", "cameras", "never"]] = "always"
    worker_memory_gb: ClassVar[float] = 2.4

    info: TaskInfo

    @classmethod
    def expand(cls, name: str) -> tuple[str, ...]:
        """`("name",)`, or the five suites for `all`. Raises `UsageError`."""
        if name == "all":
            return tuple(HORIZONS)
        if name not in HORIZONS:
            hint = nearest(name, cls.names)
            raise UsageError(f"libero has no suite {name!r}{hint} (see `rollout list libero`)")
        return (name,)

    @classmethod
    def describe(cls, name: str, options: Mapping[str, str]) -> SuiteInfo:
        """List the suite's tasks, in LIBERO's order. Raises `UsageError` where LIBERO's files are missing."""
        settings = _Settings.parse(options)
        [name] = cls.expand(name)
        suite = _benchmark(name)
        tasks = tuple(
            Task(
                task=task.name,
                task_id=task_id,
                instruction=task.language,
                horizon=HORIZONS[name],
                n_init_states=len(suite.get_task_init_states(task_id)) if settings.init_states else None,
            )
            for task_id, task in enumerate(suite.tasks)
        )
        return SuiteInfo(suite=f"libero:{name}", tasks=tasks, versions=_versions())

    def __init__(self, suite: SuiteInfo, task_id: int, options: Mapping[str, str]) -> None:
        self._settings = settings = _Settings.parse(options)
        task = suite.task(task_id)
        picture: Space = image(settings.height, settings.width)
        self.info = TaskInfo(
            suite=suite.suite,
            task=task.task,
            task_id=task_id,
            instruction=task.instruction,
            horizon=task.horizon,
            fps=FPS,
            action_space=_action_space(settings.relative),
            observation_space={**dict.fromkeys(map(image_key, CAMERAS.values()), picture), STATE: vector(8)},
            success_rule="the goal predicates of the task's BDDL file hold, at any step",
        )
        self._observe = ObservationRequest()
        self._pictures = Pictures()
        self._filming = False
        self._env: Any = None

    def build(self) -> None:
        """Compile the scene and make its GL context (5 to 10 s)."""
        suite = _benchmark(self.info.suite.partition(":")[2])
        from libero.libero.envs import OffScreenRenderEnv

        task_id = self.info.task_id
        self._init_states = suite.get_task_init_states(task_id) if self._settings.init_states else None
        self._env = OffScreenRenderEnv(
            bddl_file_name=suite.get_task_bddl_file_path(task_id),
            camera_heights=self._settings.height,
            camera_widths=self._settings.width,
            ignore_done=True,  # robosuite's limit of 1000 steps counts the settle steps; ours is the horizon
        )
        scene = self._env.env
        scene._create_camera_sensors = self._pictures.on_demand(scene._create_camera_sensors)
        self._initializers = list(scene.object_property_initializers)

    def reset(self, spec: EpisodeSpec, observe: ObservationRequest) -> Observation:
        """Seed, reset, set the initial state, settle. Raises `UsageError` for a key that there is not."""
        check_keys(observe, self.info)
        self._observe, self._filming = observe, False
        random.seed(spec.seed)
        np.random.seed(spec.seed % 2**32)
        # LIBERO appends to this list at every reset, and draws once for each entry before it places fixtures:
        # where they stand depends on how many resets there were (libero_10 3, libero_spatial 4, and more).
        # LeRobot builds, resets, and resets again for its first episode; here every episode is like that one.
        self._env.env.object_property_initializers = self._initializers * 2
        raw = self._start(spec.init_state)
        for robot in self._env.robots:  # after settling, whose no-op is a relative one
            robot.controller.use_delta = self._settings.relative
        return self._observation(raw)

    def _start(self, init_state: int | None) -> Mapping[str, Any]:
        """The moves before the first step. Only the last one's observation is read: it alone has pictures."""
        moves: list[Callable[[], Mapping[str, Any]]] = [self._env.reset]
        if init_state is not None and self._init_states is not None:
            moves.append(partial(self._env.set_init_state, self._init_states[init_state]))
        moves += [lambda: self._env.step(NO_OP)[0]] * self._settings.settle_steps
        self._pictures.expect(())
        for move in moves[:-1]:
            move()
        self._pictures.expect(self._wanted())
        return moves[-1]()

    def step(self, action: Any, observe: bool) -> Step:
        """Execute a float32 (7,) action; success terminates the episode."""
        looking = self._wanted() if observe else ()
        self._pictures.expect((*looking, FILMED) if self._filming else looking)
        raw, reward, success, _ = self._env.step(action)  # LIBERO's `done` is its goal check
        observation = self._observation(raw) if observe else None
        return Step(float(reward), bool(success), False, bool(success), observation)

    def render(self) -> np.ndarray:
        """The `agentview` picture, as the policy sees it: uint8 (height, width, 3).

        Once called, every further step of the episode makes this picture, at the same moment within the step
        as an observation's, so that the film runs evenly whether or not the policy looks.
        """
        self._filming = True
        return self._pictures.take(FILMED)

    def close(self) -> None:
        """Free the scene and its GL context."""
        env, self._env = self._env, None
        if env is not None:
            env.close()

    def _wanted(self) -> tuple[str, ...]:
        return tuple(camera for camera, name in CAMERAS.items() if self._observe.wants(image_key(name)))

    def _observation(self, raw: Mapping[str, Any]) -> Observation:
        observation: Observation = {}
        for camera in self._wanted():
            observation[image_key(CAMERAS[camera])] = self._pictures.made(camera)
        if self._observe.wants(STATE):
            parts = (raw["robot0_eef_pos"], axis_angle(raw["robot0_eef_quat"]), raw["robot0_gripper_qpos"])
            observation[STATE] = np.concatenate(parts).astype(np.float32)
        if self._observe.wants("task"):
            observation["task"] = self.info.instruction
        return observation


def axis_angle(quaternion: np.ndarray) -> np.ndarray:
    """Rotation axis times angle in radians, float32 (3,), of a unit quaternion (x, y, z, w).

    In float32 and without choosing the shorter way round, as LeRobot's `LiberoProcessorStep` computes it. Its
    `torch.acos` rounds one value in thirty to the other neighbour (2e-7 rad); the rest is equal bit for bit.
    """
    quaternion = quaternion.astype(np.float32)
    w = np.clip(quaternion[3], -1, 1)
    sine = np.sqrt(np.maximum(1 - w * w, 0))
    if sine <= 1e-10:
        return np.zeros(3, np.float32)
    angle = 2 * np.float32(np.arccos(np.float64(w)))
    turned: np.ndarray = quaternion[:3] / sine * angle
    return turned


def _action_space(relative: bool) -> Box:
    high = np.ones(7, np.float32)
    if not relative:
        high[:6] = np.inf
    return bounded(-high, high)


def _benchmark(name: str) -> Any:
    """LIBERO's own description of the suite."""
    libero_files.prepare()
    from libero.libero.benchmark import get_benchmark

    return get_benchmark(f"libero_{name}")()


def _versions() -> dict[str, str]:
    versions = {package: version(package) for package in ("robosuite", "mujoco")}
    try:
        return {"libero": version("hf-libero"), **versions}
    except PackageNotFoundError:  # a checkout of LIBERO itself
        return {"libero": version("libero"), **versions}
