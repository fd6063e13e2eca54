"""What a plug-in's author runs to know that a simulator, or a policy, keeps its promises (needs pytest).

from rollout.testing import SimulatorContract

class TestPoint(SimulatorContract):
    target = "point:marks"
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rollout.testing.policies import PolicyContract
    from rollout.testing.simulators import SimulatorContract

__all__ = ["PolicyContract", "SimulatorContract"]

_HOME = {"PolicyContract": "policies", "SimulatorContract": "simulators"}


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module 'rollout.testing' has no attribute {name!r}")
    # Not at the top: the processes that simulators run in import this package too, and need no pytest.
    return getattr(import_module(f"rollout.testing.{_HOME[name]}"), name)


def __dir__() -> list[str]:
    return __all__
