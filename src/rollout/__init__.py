"""How often does your policy succeed? An async-native rollout engine for robot-learning policies.

    report = await rollout.evaluate(policy, "metaworld:mt10", episodes=10)

Names are imported when they are first used, so that `import rollout` costs nothing.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rollout.api import Engine, evaluate, run
    from rollout.config import EvalConfig
    from rollout.errors import RolloutError
    from rollout.policies.base import Policy, PolicySpec, Request
    from rollout.results.report import Report
    from rollout.types import EpisodeResult, EpisodeSpec, TaskInfo

__all__ = [
    "Engine",
    "EpisodeResult",
    "EpisodeSpec",
    "EvalConfig",
    "Policy",
    "PolicySpec",
    "Report",
    "Request",
    "RolloutError",
    "TaskInfo",
    "evaluate",
    "run",
]

_HOME = {
    "Engine": "api",
    "evaluate": "api",
    "run": "api",
    "EvalConfig": "config",
    "RolloutError": "errors",
    "Policy": "policies.base",
    "PolicySpec": "policies.base",
    "Request": "policies.base",
    "Report": "results.report",
    "EpisodeResult": "types",
    "EpisodeSpec": "types",
    "TaskInfo": "types",
}


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module 'rollout' has no attribute {name!r}")
    return getattr(import_module(f"rollout.{_HOME[name]}"), name)


def __dir__() -> list[str]:
    return __all__
