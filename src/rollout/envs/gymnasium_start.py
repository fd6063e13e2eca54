"""How an episode of a Gymnasium environment begins beside its seed: options of this family, not of its constructor."""

from __future__ import annotations

import inspect
import json
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Final, cast

from msgspec import Struct

from rollout.envs.options import whole_number
from rollout.errors import UsageError

if TYPE_CHECKING:
    import gymnasium

    from rollout.envs.actions import Convert

__all__ = ["START_OPTIONS", "Start", "legacy_seed"]

START_OPTIONS: Final[Mapping[str, str]] = {
    "init_states": "how many initial states set_init_state(i) of the environment has: episode e starts from e mod N",
    "settle_steps": "actions executed after a reset, counted nowhere (default 0)",
    "settle_action": "the action of these steps, as JSON, e.g. [0,-1] (default: zeros, or what is nearest to them)",
}


class Start(Struct, frozen=True, kw_only=True):
    """The options' values."""

    init_states: int | None = None
    settle_steps: int = 0
    settle_action: str | None = None

    @classmethod
    def parse(cls, options: Mapping[str, str]) -> Start:
        """Read `options`, which has none but `START_OPTIONS`. Raises `UsageError`."""
        steps = whole_number(options, "settle_steps", 0, least=0, most=10_000)
        states = whole_number(options, "init_states", 0, least=1, most=10**6) or None
        action = options.get("settle_action")
        if action is not None and not steps:
            raise UsageError(f"--set settle_action={action}: how often? Add --set settle_steps=N")
        return cls(init_states=states, settle_steps=steps, settle_action=action)

    def action(self, space: gymnasium.Space[Any], convert: Convert) -> Any:
        """The settle action, for `convert` to make an element of `space` of. Raises `UsageError` where it cannot."""
        if not self.settle_steps:
            return None
        if self.settle_action is None:
            from gymnasium.wrappers.utils import create_zero_array

            return create_zero_array(space)
        try:
            action = json.loads(self.settle_action)
            convert(action)
        except Exception as exc:  # whatever a nested space's parts make of it
            where = f"--set settle_action={self.settle_action}"
            raise UsageError(f"{where}: no action of this environment, {space}: {exc}") from exc
        return action

    def setter(self, env: gymnasium.Env[Any, Any]) -> Callable[[int], Any] | None:
        """The environment's `set_init_state`; None where nothing is to be set. Raises `UsageError` if it has none."""
        if self.init_states is None:
            return None
        try:
            found: Callable[[int], Any] = env.get_wrapper_attr("set_init_state")
        except AttributeError as exc:
            raise UsageError(
                f"--set init_states={self.init_states}: the environment has no method set_init_state(i)"
            ) from exc
        return found


def legacy_seed(env: Any) -> Callable[[int], Any] | None:
    """The method `seed(s)` of the old API, which an environment may still have; None for any other `seed`."""
    try:
        seed = getattr(env, "seed", None)
    except Exception:  # a property or a `__getattr__` of its own
        return None
    if not callable(seed):
        return None
    try:
        inspect.signature(seed).bind(0)
    except TypeError:
        return None  # it takes something else
    except ValueError:  # compiled, and tells nothing
        pass
    return cast("Callable[[int], Any]", seed)
