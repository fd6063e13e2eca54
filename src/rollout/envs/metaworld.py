"""Meta-World (`metaworld:<benchmark | difficulty | task>`), evaluated as `lerobot-eval` does it."""

from __future__ import annotations

import pickle
import random
from collections.abc import Mapping
from importlib.metadata import version
from typing import Any, ClassVar, Final, Literal

import numpy as np
from msgspec import Struct

from rollout.config import nearest
from rollout.envs.base import Requirement, Step
from rollout.envs.cameras import CAMERA_OPTIONS, CameraNames
from rollout.envs.metaworld_tasks import BENCHMARKS, CAMERAS, DIFFICULTIES, INSTRUCTIONS
from rollout.envs.observations import ENVIRONMENT_STATE, STATE, bounded, check_keys, vector
from rollout.envs.options import one_of, whole_number
from rollout.envs.rendering import rendering
from rollout.errors import UsageError
from rollout.types import EpisodeSpec, Observation, ObservationRequest, SuiteInfo, Task, TaskInfo

__all__ = ["MetaWorldSimulator"]

FPS: Final = 80
# src/lerobot/envs/metaworld.py. LeRobot turns `corner2`, which hangs upside down, and no other camera.
LEROBOT: Final[Mapping[str, str]] = {"camera": "corner2", "height": "480", "width": "480", "horizon": "500"}


class MetaWorldSimulator:
    """One Meta-World v3 task (Yu et al. 2019) with a new goal and object placement for every episode.

    Observations: `observation.images.<camera>`, uint8 (height, width, 3), by default `corner2` at 480 x 480;
    `observation.state`, float32 (4,): hand position in metres and gripper opening;
    `observation.environment_state`, float32 (39,): all that Meta-World tells, the goal included, which its
    scripted experts need. `ml10` and `ml45` have it too, although they hide the goal from a meta-learner: a
    policy that must not know it reads `observation.state`. LeRobot calls its one camera `observation.image`;
    here it is named as every other.

    Actions: float32 (4,) in [-1, 1]: displacement of the hand (1 is 1 cm) and gripper effort.

    The semantics are those of huggingface/lerobot, src/lerobot/envs/metaworld.py: the goal-observable
    environment, drawing its random vector from its own generator, which is seeded with the episode's seed
    before the reset; camera `corner2` moved to [0.75, 0.075, 0.7] and turned upright; the first success ends
    the episode.
    """

    family: ClassVar[str] = "metaworld"
    names: ClassVar[tuple[str, ...]] = (*BENCHMARKS, *DIFFICULTIES, *INSTRUCTIONS)
    aliases: ClassVar[Mapping[str, str]] = {
        f"metaworld:{task.removesuffix('-v3')}": f"metaworld:{task}" for task in INSTRUCTIONS
    }
    requires: ClassVar[tuple[Requirement, ...]] = (
        Requirement("metaworld", "pip install 'rollout-engine[metaworld]'"),
    )
    options: ClassVar[Mapping[str, str]] = {
        "camera": f"the camera that observations have: {', '.join(CAMERAS)}",
        "height": "height of its pictures in pixels",
        "width": "width of its pictures in pixels",
        "horizon": "most steps of an episode",
        **CAMERA_OPTIONS,
    }
    protocols: ClassVar[Mapping[str, Mapping[str, str]]] = {"lerobot": LEROBOT}
    needs_gl: ClassVar[Literal["always", "cameras", "never"]] = "cameras"
    worker_memory_gb: ClassVar[float] = 0.4
    build_s: ClassVar[float] = 0.2
    step_s: ClassVar[float] = 0.001

    info: TaskInfo

    @classmethod
    def expand(cls, name: str) -> tuple[str, ...]:
        """The suite called `name`; a task may leave out its `-v3`. Raises `UsageError`."""
        for known in (name, f"{name}-v3"):
            if known in cls.names:
                return (known,)
        hint = nearest(name, cls.names)
        raise UsageError(f"metaworld has no suite {name!r}{hint} (see `rollout list metaworld`)")

    @classmethod
    def describe(cls, name: str, options: Mapping[str, str]) -> SuiteInfo:
        """List the tasks of a benchmark (in Meta-World's order), a difficulty (in LeRobot's), or one task."""
        horizon = _Options.parse(options).horizon
        [name] = cls.expand(name)
        tasks = tuple(
            Task(task=task, task_id=task_id, instruction=INSTRUCTIONS[task], horizon=horizon)
            for task_id, task in enumerate(_tasks(name))
        )
        versions = {package: version(package) for package in ("metaworld", "mujoco")}
        return SuiteInfo(suite=f"metaworld:{name}", tasks=tasks, versions=versions)

    @classmethod
    def preload(cls) -> None:
        """Import Meta-World with all its tasks (0.3 s)."""
        import metaworld.env_dict  # noqa: F401

    def __init__(self, suite: SuiteInfo, task_id: int, options: Mapping[str, str]) -> None:
        self._settings = settings = _Options.parse(options)
        self._cameras = settings.cameras
        [self._camera] = self._cameras.names
        task = suite.task(task_id)
        self.info = TaskInfo(
            suite=suite.suite,
            task=task.task,
            task_id=task_id,
            instruction=task.instruction,
            horizon=task.horizon,
            fps=FPS,
            action_space=bounded(-np.ones(4, np.float32), np.ones(4, np.float32)),
            observation_space={
                **self._cameras.spaces(settings.height, settings.width),
                STATE: vector(4),
                ENVIRONMENT_STATE: vector(39),
            },
            success_rule="Meta-World's own success signal, at any step",
        )
        self._observe = ObservationRequest()
        self._frame: np.ndarray | None = None  # of the present step, once something asked for it
        self._env: Any = None

    def build(self) -> None:
        """Load the task's model. No GL is touched before the first picture is asked for."""
        from metaworld.env_dict import ALL_V3_ENVIRONMENTS
        from metaworld.types import Task as Goal

        height, width = self._settings.height, self._settings.width
        task = self.info.task
        environment = ALL_V3_ENVIRONMENTS[task]
        env = environment(render_mode="rgb_array", camera_name=self._camera, height=height, width=width)
        # What `MT1(task, seed=42)` and `set_task(train_tasks[0])` leave behind, without MT1's second
        # environment and the 50 goals that it draws there: every episode draws its own (0.14 s, not 0.75 s).
        goal = {"rand_vec": None, "env_cls": environment, "partially_observable": False}
        env.set_task(Goal(task, pickle.dumps(goal)))
        env._freeze_rand_vec = False
        env.seeded_rand_vec = True
        env.model.camera("corner2").pos[:] = (0.75, 0.075, 0.7)
        self._env = env

    def reset(self, spec: EpisodeSpec, observe: ObservationRequest) -> Observation:
        """Seed all that Meta-World could draw from, then reset. Raises `UsageError` for an unknown key."""
        check_keys(observe, self.info)
        random.seed(spec.seed)
        np.random.seed(spec.seed % 2**32)
        self._env.seed(spec.seed)
        self._env.max_path_length = spec.horizon  # it refuses to step beyond, whatever --horizon says
        self._observe = observe
        self._frame = None
        state, _ = self._env.reset()
        return self._observation(state)

    def step(self, action: Any, observe: bool) -> Step:
        """Execute a float32 (4,) action; success terminates the episode."""
        state, reward, _, truncated, info = self._env.step(action)
        self._frame = None
        success = bool(info["success"])
        observation = self._observation(state) if observe else None
        return Step(float(reward), success, bool(truncated), success, observation)

    def render(self) -> np.ndarray:
        """The picture that a policy would see now: uint8 (height, width, 3)."""
        if self._frame is None:
            with rendering:
                picture = self._env.render()
            # LeRobot turns this camera, which hangs upside down, and no other.
            self._frame = np.ascontiguousarray(picture[::-1, ::-1] if self._camera == "corner2" else picture)
        return self._frame

    def close(self) -> None:
        """Free the simulator and its GL context."""
        env, self._env, self._frame = self._env, None, None
        if env is not None:
            env.close()

    def _observation(self, state: np.ndarray) -> Observation:
        wants = self._observe.wants
        observation = self._cameras.blank(self._observe, self._settings.height, self._settings.width)
        for camera in self._cameras.wanted(self._observe):
            observation[self._cameras.key(camera)] = self.render()
        if wants(STATE):
            observation[STATE] = state[:4].astype(np.float32)
        if wants(ENVIRONMENT_STATE):
            observation[ENVIRONMENT_STATE] = state.astype(np.float32)
        if wants("task"):
            observation["task"] = self.info.instruction
        return observation


def _tasks(name: str) -> tuple[str, ...]:
    if name in INSTRUCTIONS:
        return (name,)
    if name in DIFFICULTIES:
        return DIFFICULTIES[name]
    from metaworld import env_dict

    table, split = BENCHMARKS[name]
    tasks = getattr(env_dict, table)
    return tuple(tasks if split is None else tasks[split])


class _Options(Struct, frozen=True, kw_only=True):
    """The options' values, read."""

    height: int
    width: int
    horizon: int
    cameras: CameraNames  # one

    @classmethod
    def parse(cls, given: Mapping[str, str]) -> _Options:
        """Read `given`; what it leaves out is LeRobot's. Raises `UsageError`."""
        values = {**LEROBOT, **given}
        camera = one_of(values, "camera", CAMERAS)
        return cls(
            height=whole_number(values, "height", 480, least=16, most=4096),
            width=whole_number(values, "width", 480, least=16, most=4096),
            horizon=whole_number(values, "horizon", 500, least=1, most=10**6),
            cameras=CameraNames.parse(values, {camera: camera}, [camera]),
        )
