"""LIBERO (`libero:<spatial | object | goal | 10 | 90>`), evaluated as `lerobot-eval` does it."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Mapping
from contextlib import redirect_stdout
from functools import partial
from importlib.metadata import PackageNotFoundError, version
from typing import Any, ClassVar, Final, Literal

import numpy as np
from msgspec import structs

from rollout.config import nearest
from rollout.envs import libero_files
from rollout.envs.base import Requirement, Step
from rollout.envs.gl import NO_WINDOW, rendering_off
from rollout.envs.libero_cameras import Pictures, padded, turned
from rollout.envs.libero_options import HORIZONS, OPTIONS, PROTOCOLS, LiberoOptions
from rollout.envs.libero_scene import open_scene
from rollout.envs.libero_state import EnvironmentState
from rollout.envs.observations import ENVIRONMENT_STATE, STATE, bounded, check_keys, vector
from rollout.errors import UsageError
from rollout.spaces import Box
from rollout.types import EpisodeSpec, Observation, ObservationRequest, SuiteInfo, Task, TaskInfo

__all__ = ["LiberoSimulator", "axis_angle"]

FPS: Final = 20
FILMED: Final = "agentview"
LEAST_SINE: Final = {"float32": 1e-10, "float64": 0.0, "antipodal": 1e-8}  # less is no rotation
NO_OP: Final = (0, 0, 0, 0, 0, 0, -1)  # stay, gripper open


class LiberoSimulator:
    """One LIBERO task (Liu et al. 2023): a Panda arm at 20 Hz, an instruction, 50 fixed initial states.

    Observations: `observation.images.image` (`agentview`) and `observation.images.image2` (the wrist), uint8
    (height, width, 3), in the protocol `lerobot` 360 x 360 and turned by 180 degrees; `observation.state`,
    float32 (8,): position of the hand in metres, its orientation as axis times angle, positions of the two
    fingers; `observation.environment_state`, float32 of a length that the task decides: what the scripted
    expert needs, element by element named in `TaskInfo.environment_state`.

    Actions: float32 (7,), passed on as they are unless the gripper is `binary`. In `relative` mode displacement,
    rotation and gripper in [-1, 1] (-1 opens it); in `absolute` mode position in metres, axis times angle, and
    gripper.

    The semantics of the protocol `lerobot` are those of huggingface/lerobot, src/lerobot/envs/libero.py and its
    LIBERO processor: seed, reset, initial state, 10 settle steps that count nowhere; the first success ends the
    episode. `libero_options` has what the others change.
    """

    family: ClassVar[str] = "libero"
    names: ClassVar[tuple[str, ...]] = (*HORIZONS, "all")
    aliases: ClassVar[Mapping[str, str]] = {f"libero_{name}": f"libero:{name}" for name in (*HORIZONS, "all")}
    # Not the asset packages: a checkout of LIBERO, or a folder of the user's, may hold the assets.
    requires: ClassVar[tuple[Requirement, ...]] = (
        Requirement("libero", libero_files.INSTALL),
        Requirement("robosuite", libero_files.INSTALL),
    )
    options: ClassVar[Mapping[str, str]] = OPTIONS
    protocols: ClassVar[Mapping[str, Mapping[str, str]]] = PROTOCOLS
    needs_gl: ClassVar[Literal["always", "cameras", "never"]] = "always"
    worker_memory_gb: ClassVar[float] = 2.1  # the largest scenes, after many others (1.6 with one scene)
    build_s: ClassVar[float] = 6.0
    step_s: ClassVar[float] = 0.02  # where one step in ten is looked at

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
        settings = LiberoOptions.parse(options)
        [name] = cls.expand(name)
        suite = _benchmark(name)
        tasks = tuple(
            Task(
                task=task.name,
                task_id=task_id,
                instruction=task.language,
                horizon=settings.horizons[name],
                n_init_states=len(suite.get_task_init_states(task_id)) if settings.init_states else None,
            )
            for task_id, task in enumerate(suite.tasks)
        )
        return SuiteInfo(suite=f"libero:{name}", tasks=tasks, versions=_versions())

    @classmethod
    def preload(cls) -> None:
        """Import LIBERO, robosuite and what comes with them (3 s, 130 MB)."""
        libero_files.prepare()
        with rendering_off(NO_WINDOW):
            import libero.libero.benchmark
            import libero.libero.envs  # noqa: F401
            from robosuite.utils.transform_utils import mat2quat

            mat2quat(np.eye(3))  # the first function of numba's that is called loads most of numba (0.7 s)

    def __init__(self, suite: SuiteInfo, task_id: int, options: Mapping[str, str]) -> None:
        self._settings = settings = LiberoOptions.parse(options)
        self._cameras = settings.cameras
        task = suite.task(task_id)
        self.info = TaskInfo(
            suite=suite.suite,
            task=task.task,
            task_id=task_id,
            instruction=task.instruction,
            horizon=task.horizon,
            fps=FPS,
            action_space=_action_space(settings.relative),
            observation_space={**self._cameras.spaces(*settings.picture), STATE: vector(8)},
            success_rule="the goal predicates of the task's BDDL file hold, at any step",
        )
        self._observe = ObservationRequest()
        self._pictures = Pictures()
        self._filming = False
        self._env: Any = None

    def build(self) -> None:
        """Compile the scene (3 to 8 s). Its GL context is made when a first picture is asked for."""
        suite = _benchmark(self.info.suite.partition(":")[2])
        settings, task_id = self._settings, self.info.task_id
        self._init_states = suite.get_task_init_states(task_id) if settings.init_states else None
        self._env = open_scene(
            suite.get_task_bddl_file_path(task_id),
            self._pictures,
            fast_reset=settings.fast_reset,
            camera_names=list(dict.fromkeys((*self._cameras.names, FILMED))),
            camera_heights=settings.height,
            camera_widths=settings.width,
            ignore_done=True,  # robosuite's limit of 1000 steps counts the settle steps; ours is the horizon
        )
        # MuJoCo keeps the source of what it compiled last, textures and all (0.3 to 0.5 GB), until it compiles again.
        import mujoco

        mujoco.MjModel.from_xml_string("<mujoco/>")
        scene = self._env.env
        self._initializers = list(scene.object_property_initializers)
        self._state = EnvironmentState(scene)
        self.info = structs.replace(
            self.info,
            observation_space={
                **self.info.observation_space,
                ENVIRONMENT_STATE: vector(len(self._state.names)),
            },
            environment_state=self._state.names,
            goal=self._state.goal,
        )

    def reset(self, spec: EpisodeSpec, observe: ObservationRequest) -> Observation:
        """Seed, reset, set the initial state, settle. Raises `UsageError` for a key that there is not."""
        check_keys(observe, self.info)
        self._observe, self._filming = observe, False
        random.seed(spec.seed)
        np.random.seed(spec.seed % 2**32)
        # LIBERO appends to this list at every reset, and draws once for each entry before it places fixtures:
        # where they stand depends on how many resets there were (libero_10 3, libero_spatial 4, and more). Here it
        # depends on the spec alone, in the same way as in a loop that runs a task's episodes one after the other.
        earlier = self._settings.earlier_resets
        earlier = spec.episode if earlier is None else earlier
        self._env.env.object_property_initializers = self._initializers * (1 + earlier)
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
        self._pictures.expect(self._cameras.wanted(self._observe))
        return moves[-1]()

    def step(self, action: Any, observe: bool) -> Step:
        """Execute a float32 (7,) action; success terminates the episode."""
        if self._settings.binary_gripper:
            action = np.append(action[:-1], np.float32(-1 if action[-1] < 0 else 1))
        looking = self._cameras.wanted(self._observe) if observe else ()
        self._pictures.expect((*looking, FILMED) if self._filming else looking)
        raw, reward, success, _ = self._env.step(action)  # LIBERO's `done` is its goal check
        observation = self._observation(raw) if observe else None
        return Step(float(reward), bool(success), False, bool(success), observation)

    def render(self) -> np.ndarray:
        """The `agentview` picture, upright: uint8 (height, width, 3).

        Once called, every further step of the episode makes this picture, at the same moment within the step
        as an observation's, so that the film runs evenly whether or not the policy looks.
        """
        self._filming = True
        return turned(self._pictures.take(FILMED), "both")

    def close(self) -> None:
        """Free the scene and its GL context."""
        env, self._env = self._env, None
        if env is not None:
            env.close()

    def _observation(self, raw: Mapping[str, Any]) -> Observation:
        settings, wants = self._settings, self._observe.wants
        observation = self._cameras.blank(self._observe, *settings.picture)
        for camera in self._cameras.wanted(self._observe):
            picture = turned(self._pictures.made(camera), settings.flip)
            observation[self._cameras.key(camera)] = (
                picture if settings.resize is None else padded(picture, settings.resize)
            )
        if wants(STATE):
            angle = axis_angle(raw["robot0_eef_quat"], settings.quaternion)
            parts = (raw["robot0_eef_pos"], angle, raw["robot0_gripper_qpos"])
            observation[STATE] = np.concatenate(parts).astype(np.float32)
        if wants(ENVIRONMENT_STATE):
            observation[ENVIRONMENT_STATE] = self._state.read()
        if wants("task"):
            observation["task"] = self.info.instruction
        return observation


def axis_angle(quaternion: np.ndarray, rule: str = "float32") -> np.ndarray:
    """Rotation axis times angle in radians, (3,), of a unit quaternion (x, y, z, w), by one of three rules.

    `float32`: in float32 and without choosing the shorter way round, as LeRobot's `LiberoProcessorStep` computes
    it. Its `torch.acos` rounds one value in thirty to the other neighbour (2e-7 rad); the rest is equal bit for
    bit. `float64`: as robosuite's `quat2axisangle`, which openpi uses. `antipodal`: the shorter way round, as
    vla-eval's `quat_to_axisangle`.
    """
    if rule == "float32":
        quaternion = quaternion.astype(np.float32)
    elif rule == "antipodal" and quaternion[3] < 0:
        quaternion = -quaternion
    w = np.clip(quaternion[3], -1, 1)
    sine = np.sqrt(np.maximum(1 - w * w, 0))
    if sine <= LEAST_SINE[rule]:
        return np.zeros(3, np.float32)
    angle = quaternion.dtype.type(2 * math.acos(w))
    around: np.ndarray = quaternion[:3] / sine * angle
    return around


def _action_space(relative: bool) -> Box:
    high = np.ones(7, np.float32)
    if not relative:
        high[:6] = np.inf
    return bounded(-high, high)


def _benchmark(name: str) -> Any:
    """LIBERO's own description of the suite."""
    libero_files.prepare()
    from libero.libero.benchmark import get_benchmark

    with redirect_stdout(None):  # it prints the order of its tasks
        return get_benchmark(f"libero_{name}")()


def _versions() -> dict[str, str]:
    versions = {package: version(package) for package in ("robosuite", "mujoco")}
    try:
        return {"libero": version("hf-libero"), **versions}
    except PackageNotFoundError:  # a checkout of LIBERO itself
        return {"libero": version("libero"), **versions}
