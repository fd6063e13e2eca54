"""From `--protocol` and `--set` to the options that simulators get, and to what the results say of them."""

from __future__ import annotations

from collections.abc import Mapping
from hashlib import blake2b

import msgspec

from rollout.config import LATER, EvalConfig, nearest
from rollout.envs.base import Simulator
from rollout.errors import UsageError
from rollout.types import ProtocolUsed

__all__ = ["DEFAULT_PROTOCOL", "protocol_used", "simulator_options"]

DEFAULT_PROTOCOL = "lerobot"  # every simulator has it, be it without any value of its own

Options = dict[str, dict[str, str]]  # by family


def simulator_options(config: EvalConfig, adapters: Mapping[str, type[Simulator]]) -> Options:
    """Each family's options: the protocol's values, and what `--set` says instead.

    Raises `UsageError` for a protocol that a family does not have, and for an option that no family has.
    """
    for name in config.options:
        _check_option(name, adapters)
    return {family: _options(config, adapter) for family, adapter in adapters.items()}


def protocol_used(config: EvalConfig, options: Options) -> ProtocolUsed:
    """The record of what `simulator_options` gave, and of what the run itself adds to it."""
    values = {
        "seed": config.seed,
        "horizon": config.horizon,
        "n_action_steps": config.n_action_steps,
        "options": options,
    }
    values |= {name: getattr(config, name) for name in LATER if getattr(config, name) is not LATER[name]}
    digest = blake2b(msgspec.json.encode(values, order="sorted"), digest_size=8).hexdigest()
    return msgspec.convert({**values, "name": config.protocol, "fingerprint": digest}, ProtocolUsed)


def _options(config: EvalConfig, adapter: type[Simulator]) -> dict[str, str]:
    known = {DEFAULT_PROTOCOL: {}, **adapter.protocols}
    if config.protocol not in known:
        raise UsageError(
            f"{adapter.family} has no protocol {config.protocol!r}{nearest(config.protocol, known)} "
            f"(it has {', '.join(known)})"
        )
    given = {name: value for name, value in config.options.items() if _has_option(adapter, name)}
    return {**known[config.protocol], **given}


def _check_option(name: str, adapters: Mapping[str, type[Simulator]]) -> None:
    if not any(_has_option(adapter, name) for adapter in adapters.values()):
        known = sorted({option for adapter in adapters.values() for option in adapter.options})
        raise UsageError(f"--set {name}: no such option{nearest(name, known)} (known: {', '.join(known)})")


def _has_option(adapter: type[Simulator], name: str) -> bool:
    """Options ending in `*` stand for all that begin with what is before it."""
    open_ended = [option[:-1] for option in adapter.options if option.endswith("*")]
    return name in adapter.options or any(name.startswith(prefix) for prefix in open_ended)
