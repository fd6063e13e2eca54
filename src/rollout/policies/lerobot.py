"""`lerobot:PATH_OR_REPO`: what `rollout list` shows; nothing here needs torch or LeRobot before it is opened."""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Any, ClassVar

from rollout.config import EvalConfig
from rollout.policies.base import Policy

__all__ = ["LeRobotPolicy"]


class LeRobotPolicy:
    """Opens the checkpoint in a folder, or of a repository of the hub (see `rollout.policies.lerobot_policy`)."""

    locator: ClassVar[str] = "PATH_OR_REPO"

    @classmethod
    def opened(cls, locator: str, config: EvalConfig, /, **arguments: Any) -> AbstractContextManager[Policy]:
        """The policy in that checkpoint. Raises `UsageError` with one line where it cannot be loaded as saved."""
        from rollout.policies.lerobot_policy import LoadedPolicy

        return LoadedPolicy.opened(locator, config, **arguments)
