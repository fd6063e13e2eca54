"""The observation keys of robot benchmarks (LeRobot's names), and their spaces."""

from __future__ import annotations

from typing import Any, Final

import numpy as np

from rollout.config import nearest
from rollout.errors import UsageError
from rollout.spaces import Box
from rollout.types import ObservationRequest, TaskInfo
from rollout.values import pack_array

__all__ = ["ENVIRONMENT_STATE", "STATE", "bounded", "check_keys", "image", "image_key", "vector"]

STATE: Final = "observation.state"
ENVIRONMENT_STATE: Final = "observation.environment_state"


def image_key(camera: str) -> str:
    """`observation.images.<camera>`."""
    return f"observation.images.{camera}"


def image(height: int, width: int) -> Box:
    """A uint8 picture (height, width, 3)."""
    return bounded(np.zeros((height, width, 3), np.uint8), np.full((height, width, 3), 255, np.uint8))


def vector(size: int) -> Box:
    """A float32 vector (size,) without bounds."""
    return bounded(np.full(size, -np.inf, np.float32), np.full(size, np.inf, np.float32))


def bounded(low: np.ndarray, high: np.ndarray) -> Box:
    """Arrays between `low` and `high`, inclusive, in their shape and dtype."""
    return Box(low.dtype.str, low.shape, pack_array(low), pack_array(high))


def check_keys(request: ObservationRequest, task: TaskInfo) -> None:
    """Raise `UsageError` where the policy reads a key that this simulator does not have."""
    known: dict[str, Any] = {**task.observation_space, "task": None}
    for key in request.keys or ():
        if key not in known:
            raise UsageError(
                f"the policy reads {key!r}, which {task.suite} does not have{nearest(key, known)} "
                f"(it has {', '.join(known)})"
            )
