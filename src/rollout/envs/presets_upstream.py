"""gym-pusht's and gym-aloha's environments with an observation that makes its parts when they are read."""

from __future__ import annotations

import importlib
import os
from collections.abc import Callable, Mapping
from types import ModuleType
from typing import Any, Final

import numpy as np

from rollout.envs.cameras import CameraNames

__all__ = ["Aloha", "PushT", "import_aloha", "import_pusht"]

JOINTS: Final = 14


def import_pusht() -> ModuleType:
    """gym-pusht's module."""
    os.environ.setdefault("PYGAME_HIDE_SUPPORT_PROMPT", "1")  # else pygame greets on standard output
    return importlib.import_module("gym_pusht.envs.pusht")


def import_aloha() -> ModuleType:
    """gym-aloha's module."""
    # dm_control would render in a thread, whose end it then complains of with tracebacks when the process ends.
    os.environ.setdefault("DISABLE_RENDER_THREAD_OFFLOADING", "1")
    return importlib.import_module("gym_aloha.env")


class _OnDemand:
    """An observation of the present step, for whoever reads it before the next."""

    def __init__(self, makers: Mapping[str, Callable[[], Any]]) -> None:
        self._makers = makers

    def __getitem__(self, name: str) -> Any:
        return self._makers[name]()


class PushT:
    """`gym_pusht/PushT-v0` with all that its observation types have: pixels, agent_pos, environment_state."""

    def __init__(self, height: int, width: int, cameras: CameraNames) -> None:
        from gymnasium import spaces

        self._upstream = import_pusht()
        self._env = env = self._upstream.PushTEnv(
            obs_type="state",  # the one that renders nothing
            observation_height=height,
            observation_width=width,
            visualization_height=384,
            visualization_width=384,
        )
        env._get_coverage = self._coverage
        self.unwrapped = env
        self.metadata = env.metadata
        self.action_space = env.action_space
        self.observation_space = spaces.Dict(
            {
                "pixels": _pixels(height, width, cameras),
                "agent_pos": _vector(2),
                "environment_state": _vector(16),
            }
        )
        self._seen = _OnDemand(
            {
                "pixels": _on_demand(env._render, height, width, cameras),
                "agent_pos": lambda: np.array(env.agent.position),
                "environment_state": lambda: env.get_keypoints(env._block_shapes).flatten(),
            }
        )

    def reset(self, *, seed: int) -> tuple[Any, dict[str, Any]]:
        """Start an episode."""
        self._env._last_action = None  # upstream draws the last episode's into the first frame of a video
        _, info = self._env.reset(seed=seed)
        return self._seen, info

    def step(self, action: np.ndarray) -> tuple[Any, Any, Any, bool, dict[str, Any]]:
        """Go to the position `action`."""
        _, reward, terminated, truncated, info = self._env.step(action)
        return self._seen, reward, terminated, truncated, info

    def render(self) -> Any:
        """The picture for a video, with a cross at the last action."""
        return self._env.render()

    def close(self) -> None:
        """Nothing is held: no window was opened."""

    def _coverage(self) -> float:
        """How much of its mark the block covers.

        Upstream takes the block's two parts from a set, so in an order that depends on where they lie in memory: in
        one state of ten the reward then differs in its last bit (gym-pusht 0.1.8, pymunk 6.11, shapely 2.2).
        """
        env, outline = self._env, self._upstream.pymunk_to_shapely
        mark = outline(env.get_goal_pose_body(env.goal_pose), env._block_shapes)
        block = outline(env.block, env._block_shapes)
        return float(mark.intersection(block).area / mark.area)


class Aloha:
    """`gym_aloha/AlohaInsertion-v0` and `AlohaTransferCube-v0`, which render three cameras a step to show one."""

    def __init__(self, task: str, height: int, width: int, cameras: CameraNames) -> None:
        from gymnasium import spaces

        self._env = env = import_aloha().AlohaEnv(
            task=task,
            obs_type="pixels_agent_pos",
            observation_height=height,
            observation_width=width,
            visualization_height=height,
            visualization_width=width,
        )
        env._env.task.get_observation = lambda physics: None
        env._format_raw_obs = self._observe
        self._physics = physics = env._env.physics
        screen = physics.model.vis.global_  # a context renders no larger than this
        screen.offheight, screen.offwidth = max(screen.offheight, height), max(screen.offwidth, width)
        self.unwrapped = env
        self.metadata = env.metadata
        self.action_space = env.action_space
        self.observation_space = spaces.Dict(
            {
                "pixels": _pixels(height, width, cameras),
                "agent_pos": _vector(JOINTS),
            }
        )
        self._seen = _OnDemand(
            {
                "pixels": _on_demand(self.render, height, width, cameras),
                "agent_pos": lambda: env._env.task.get_qpos(physics),
            }
        )
        self._frame: np.ndarray | None = None  # of the present step, once something asked for it

    def reset(self, *, seed: int) -> tuple[Any, dict[str, Any]]:
        """Start an episode."""
        # RandomState takes no larger seed.
        observed: tuple[Any, dict[str, Any]] = self._env.reset(seed=seed % 2**32)
        return observed

    def step(self, action: np.ndarray) -> tuple[Any, Any, Any, bool, dict[str, Any]]:
        """Move the joints towards `action`."""
        done: tuple[Any, Any, Any, bool, dict[str, Any]] = self._env.step(action)
        return done

    def render(self) -> np.ndarray:
        """The camera `top`."""
        if self._frame is None:
            self._frame = np.ascontiguousarray(self._env.render())
        return self._frame

    def close(self) -> None:
        """Free the GL context and MuJoCo's data, which upstream leaves to the interpreter's end."""
        self._physics.free()

    def _observe(self, raw: None) -> _OnDemand:
        self._frame = None
        return self._seen


def _pixels(height: int, width: int, cameras: CameraNames) -> Any:
    """A space for each camera, by the name that the policy knows it by."""
    from gymnasium import spaces

    names = (*cameras.names.values(), *cameras.empty_names)
    return spaces.Dict({name: spaces.Box(0, 255, (height, width, 3), np.uint8) for name in names})


def _on_demand(
    render: Callable[[], np.ndarray], height: int, width: int, cameras: CameraNames
) -> Callable[[], _OnDemand]:
    """Makers of the one camera's picture, and of the black ones."""
    pictures = _OnDemand(
        dict.fromkeys(cameras.empty_names, lambda: np.zeros((height, width, 3), np.uint8))
        | dict.fromkeys(cameras.names.values(), render)
    )
    return lambda: pictures


def _vector(size: int) -> Any:
    from gymnasium import spaces

    return spaces.Box(-np.inf, np.inf, (size,), np.float32)
