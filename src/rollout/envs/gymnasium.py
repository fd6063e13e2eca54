"""Any Gymnasium environment: `gym:<id>`, or `gym:<module>:<id>` where importing `module` registers it.

Observations get LeRobot's keys, as `rollout.envs.gymnasium_observations` tells. `task`, the instruction,
is in every observation: the observation's own text, else `info["task"]`, else the environment's
`task_description`, `task` or `instruction` where that is a string, else the empty string.
"""

from __future__ import annotations

import random
from collections.abc import Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, Any, ClassVar, Final, Literal

import numpy as np

from rollout.envs.actions import converter
from rollout.envs.base import Requirement, Step
from rollout.envs.gymnasium_observations import observation_fields, to_observation
from rollout.envs.gymnasium_registry import find, keywords
from rollout.envs.gymnasium_signals import UNREADABLE, flag, one_reward, plain_info, reported, success
from rollout.envs.gymnasium_start import START_OPTIONS, Start, legacy_seed
from rollout.envs.observations import check_keys
from rollout.spaces import describe
from rollout.types import EpisodeSpec, Observation, ObservationRequest, SuiteInfo, Task, TaskInfo
from rollout.values import sendable

if TYPE_CHECKING:
    import gymnasium

__all__ = ["GymnasiumSimulator", "to_frame"]

ATTRIBUTES: Final = ("task_description", "task", "instruction")
# What the info of an environment has that was reset in the very step that ended its episode.
AUTORESET: Final = frozenset(("final_info", "final_obs", "final_observation", "terminal_observation"))
OLD_API: Final = (
    "this environment has the old Gym API (reset() takes no seed or returns the observation alone, step() "
    "returns four values): wrap it for Gymnasium, e.g. in shimmy's GymV21CompatibilityV0"
)


class GymnasiumSimulator:
    """One Gymnasium environment, as `gymnasium.make` wraps it, without the environment checker.

    Every episode begins with `reset(seed=...)`, after the global generators of `random` and NumPy, the
    environment's spaces (many a toy samples its observations from one) and, where there is one, the old
    `env.seed(s)` got the same seed.

    Success is `info["is_success"]`, else `info["success"]`, at the step that ends the episode first in
    `info["final_info"]`. It is unknown where neither is given, or where no step told of success and the `info` of one
    could not be read.
    """

    family: ClassVar[str] = "gym"
    names: ClassVar[tuple[str, ...]] = ()
    aliases: ClassVar[Mapping[str, str]] = {}
    requires: ClassVar[tuple[Requirement, ...]] = (Requirement("gymnasium", "pip install gymnasium"),)
    options: ClassVar[Mapping[str, str]] = {
        "*": "a keyword argument of the environment (JSON, else text), e.g. --set max_episode_steps=200",
        **START_OPTIONS,
    }
    protocols: ClassVar[Mapping[str, Mapping[str, str]]] = {}
    needs_gl: ClassVar[Literal["always", "cameras", "never"]] = "never"
    worker_memory_gb: ClassVar[float] = 0.2
    # Nobody knows: rather a worker too many than one too few, which would wait for a slow episode.
    build_s: ClassVar[float] = 0.05
    step_s: ClassVar[float] = 0.01

    info: TaskInfo
    success_at_reset: bool = False

    _success_rule: ClassVar[str] = "info['is_success'], else info['success'], at any step"

    @classmethod
    def expand(cls, name: str) -> tuple[str, ...]:
        """One environment is one suite."""
        return (name,)

    @classmethod
    def describe(cls, name: str, options: Mapping[str, str]) -> SuiteInfo:
        """The environment as a suite of one task, called by its id. Raises `UsageError` (see `find`)."""
        entry = find(name, options)
        task = Task(
            task=entry.spec.id, task_id=0, horizon=entry.horizon, n_init_states=entry.start.init_states
        )
        return SuiteInfo(suite=f"gym:{name}", tasks=(task,), versions=entry.versions)

    def __init__(self, suite: SuiteInfo, task_id: int, options: Mapping[str, str]) -> None:
        self._suite = suite
        self._task = suite.task(task_id)
        self._options = options
        self._start = Start()
        self._env: Any = None
        self._frame: np.ndarray | None = None  # the last one of this episode
        self._reset_itself = False  # what there is to render is the next episode's

    def build(self) -> None:
        """Make the environment. Raises what its constructor raises, and `TypeError` for the old Gym API."""
        # What a constructor draws stays for all episodes, so it must not depend on which one comes first.
        random.seed(0)
        np.random.seed(0)
        self._env = env = self._make()
        _refuse_old_api(env)
        self._bare: Any = env.unwrapped
        for name in ("action_space", "observation_space"):
            if getattr(env, name, None) is None:
                raise TypeError(f"the environment has no {name}: its constructor must set one")
        self._spaces = _spaces(env, self._bare)
        self._seed = legacy_seed(self._bare)
        self._execute = env.step
        self._convert = converter(env.action_space)
        self._set_init_state = self._start.setter(env)
        self._settle_action = self._start.action(env.action_space, self._convert)
        self._all_fields = observation_fields(env.observation_space)
        self._instruction_at = self._instruction_attribute()
        self.info = TaskInfo(
            suite=self._suite.suite,
            task=self._task.task,
            task_id=self._task.task_id,
            instruction=sendable(self._instruction({})),
            horizon=self._task.horizon,
            fps=_fps(env),
            action_space=describe(env.action_space),
            observation_space={field.key: describe(field.space) for field in self._all_fields},
            success_rule=self._success_rule,
        )

    def reset(self, spec: EpisodeSpec, observe: ObservationRequest) -> Observation:
        """Seed everything, then reset. Raises `UsageError` for a key that is not there."""
        check_keys(observe, self.info)
        seed = int(spec.seed)
        random.seed(seed)
        np.random.seed(seed % 2**32)
        for space in self._spaces:
            space.seed(seed)
        if self._seed is not None:
            self._seed(seed)
        self._frame, self._reset_itself = None, False
        seen, info = self._begin(self._env.reset(seed=seed), spec)
        self.success_at_reset = False
        with suppress(ValueError):  # no step yet, that an unreadable value could spoil
            self.success_at_reset = success(info) is True
        self._instruction_at = self._instruction_attribute()
        wanted = [field for field in self._all_fields if field.key == "task" or observe.wants(field.key)]
        self._observe = to_observation(wanted)
        return self._observation(seen, info)

    def _begin(self, reset: Any, spec: EpisodeSpec) -> tuple[Any, Mapping[str, Any]]:
        """From the environment's reset to the episode's start: the initial state, then the settle steps."""
        self._refuse_no_pair(reset)
        seen, info = reset[0], plain_info(reset[1])
        if self._set_init_state is not None and spec.init_state is not None:
            returned, info = self._set_init_state(spec.init_state), {}  # the info was of another state
            seen = seen if returned is None else returned
        n_settle = self._start.settle_steps
        for _ in range(n_settle):
            seen, _, terminated, truncated, told = self._execute(self._convert(self._settle_action))
            info = plain_info(told)
            if flag(terminated, "terminated") or flag(truncated, "truncated"):
                raise ValueError(
                    f"the episode ended within its {n_settle} settle steps: fewer --set settle_steps"
                )
        return seen, info

    def _refuse_no_pair(self, reset: Any) -> None:
        """Raise `TypeError` where what a reset returned is no observation with its info."""
        from gymnasium import spaces

        pair = isinstance(reset, tuple) and len(reset) == 2
        if pair and isinstance(reset[1], Mapping):
            return
        space = self._env.observation_space
        of_observations = isinstance(space, spaces.Tuple) and space.contains(reset)
        if of_observations or not (reset is None or isinstance(reset, tuple | list)):
            raise TypeError(OLD_API)
        if not pair:
            what = "None" if reset is None else f"a {type(reset).__name__} of length {len(reset)}"
            raise TypeError(f"reset() returned {what}, and not the pair (observation, info)")

    def step(self, action: Any, observe: bool) -> Step:
        """Execute one action: an array, or a nested value, of the action space.

        Raises `ValueError` for an action that is not in it, and for a reward or a flag that is not one value.
        """
        try:
            seen, reward, terminated, truncated, info = self._execute(self._convert(action))
        except ValueError as exc:
            if "(expected 5, got 4)" in str(exc):  # here, or in a wrapper of Gymnasium's
                raise TypeError(OLD_API) from exc
            raise
        if type(reward) is not float:
            reward = one_reward(reward)
        if type(terminated) is not bool:
            terminated = flag(terminated, "terminated") or False
        if type(truncated) is not bool:
            truncated = flag(truncated, "truncated") or False
        if type(info) is not dict:
            info = plain_info(info)
        observation = self._observation(seen, info) if observe else None
        if not info and info is not UNREADABLE:  # most say nothing at most steps
            return Step(reward, terminated, truncated, None, observation)
        ended = terminated or truncated
        succeeded, unreadable = reported(info, ended=ended)
        if ended and not AUTORESET.isdisjoint(info):
            self._reset_itself = True
        return Step(reward, terminated, truncated, succeeded, observation, unreadable)

    def render(self) -> np.ndarray:
        """What `env.render()` shows, as uint8 (height, width, 3); the last frame again where the environment reset
        itself as its episode ended. Raises `ValueError` (see `to_frame`)."""
        if self._frame is None or not self._reset_itself:
            self._frame = to_frame(self._env.render()).copy()
        return self._frame

    def close(self) -> None:
        """Close the environment. Idempotent."""
        env, self._env = self._env, None
        if env is not None:
            env.close()

    def _make(self) -> Any:
        """The environment. Presets of this class make their own."""
        entry = find(self._suite.suite.removeprefix("gym:"), self._options)
        self._start = entry.start
        return entry.make()

    def _observation(self, seen: Any, info: Mapping[str, Any]) -> Observation:
        observation = self._observe(seen)
        if (text := observation.get("task") or self._instruction(info)) and isinstance(text, str):
            text = sendable(text)
        observation["task"] = text
        return observation

    def _instruction(self, info: Mapping[str, Any]) -> str:
        if info and isinstance(text := info.get("task"), str):
            return text
        return "" if self._instruction_at is None else self._text(self._instruction_at) or ""

    def _instruction_attribute(self) -> str | None:
        """Looked for once an episode: three attributes that are not there cost 0.4 us a step."""
        return next((name for name in ATTRIBUTES if self._text(name) is not None), None)

    def _text(self, name: str) -> str | None:
        try:
            value = getattr(self._bare, name, None)
        except Exception:  # a property that knows its task only after a reset
            return None
        return value if isinstance(value, str) else None


def to_frame(rendered: Any) -> np.ndarray:
    """What an environment rendered, as a video frame: uint8 (height, width, 3).

    Of a list of frames, the last. Grey frames (height, width) or (height, width, 1) become grey RGB, an alpha
    channel is dropped. Floats are taken as [0, 1] where none exceeds 1, else as [0, 255]; booleans as black
    and white. Raises `ValueError`, saying what it got, for anything else.
    """
    if isinstance(rendered, list | tuple):
        rendered = rendered[-1] if rendered else None
    if rendered is None:
        raise ValueError("render() returned no frame to film: does it have the render mode rgb_array?")
    frame = np.asarray(rendered)
    if frame.ndim == 2:
        frame = frame[..., None]
    if frame.dtype.kind not in "buif" or frame.ndim != 3 or frame.shape[2] not in (1, 3, 4) or not frame.size:
        raise ValueError(f"render() returned {frame.dtype} {frame.shape}, no picture (height, width, 3)")
    frame = _to_uint8(frame[..., :3])
    return frame if frame.shape[2] == 3 else np.repeat(frame, 3, axis=2)


def _to_uint8(frame: np.ndarray) -> np.ndarray:
    if frame.dtype == np.uint8:
        return frame
    if frame.dtype.kind == "f":
        frame = np.nan_to_num(frame)
        frame = np.rint(frame * 255 if frame.max() <= 1 else frame)
    picture: np.ndarray = np.clip(frame, 0, 255).astype(np.uint8)
    return picture * np.uint8(255) if frame.dtype.kind == "b" else picture


def _fps(env: gymnasium.Env[Any, Any]) -> int:
    """The environment's `render_fps`, where it is a number that a film can have; else 30."""
    fps = env.metadata.get("render_fps") if isinstance(env.metadata, Mapping) else None
    return max(1, round(fps)) if isinstance(fps, int | float) and 0 < fps < 1000 else 30


def _refuse_old_api(env: Any) -> None:
    layer = env
    while type(layer).__module__.startswith("gymnasium.wrappers."):  # they take a seed, whatever they wrap
        layer = layer.env
    accepted = keywords(layer.reset)
    if accepted is not None and "seed" not in accepted:
        raise TypeError(OLD_API)


def _spaces(*layers: Any) -> list[gymnasium.Space[Any]]:
    """The spaces that the environment may sample from, each once."""
    found = [getattr(layer, name, None) for layer in layers for name in ("action_space", "observation_space")]
    return list({id(space): space for space in found if space is not None}.values())
