"""The options of `rollout serve`, and what they say."""

from __future__ import annotations

import ipaddress
import os
from collections.abc import Callable, Mapping
from typing import Any, Final

import click

from rollout.arguments import run_options, settings
from rollout.config import EvalConfig
from rollout.envs.registry import resolve
from rollout.errors import UsageError
from rollout.policies.openpi import LIBERO_KEYS

__all__ = ["Serving", "serve_options"]

PLACEHOLDER: Final = "gym:served"  # where nobody says what the clients run

SHARED: Final = (
    "policy",
    "policy_arg",
    "device",
    "dtype",
    "compile",
    "trust_remote_code",
    "deterministic",
    "max_batch",
    "max_wait_ms",
)
"""The options of `rollout run` that a server has too."""

_OPTIONS = (
    click.option("--host", default="127.0.0.1", metavar="H", help="The address to listen at.  [127.0.0.1]"),
    click.option(
        "--port",
        type=click.IntRange(0, 65535),
        default=8000,
        metavar="P",
        help="The port to listen at; 0: any free one.  [8000]",
    ),
    click.option(
        "--api-key-env",
        metavar="NAME",
        help="The environment variable with the key that clients must have.  [none]",
    ),
    click.option(
        "--max-frame-mb",
        type=click.IntRange(1, 1024),
        default=64,
        metavar="N",
        help="MiB that a request may have.  [64]",
    ),
    click.option(
        "--observation",
        multiple=True,
        metavar="THEIRS=OURS",
        help="What openpi's clients call an observation.  [as LIBERO's]",
    ),
    click.option(
        "--target",
        multiple=True,
        metavar="TARGET",
        help="What clients will run, where the policy's keys depend on it.",
    ),
)


class Serving:
    """What the command line asked for. No struct: its API key must not be shown with it."""

    def __init__(
        self, policy: str, config: EvalConfig, host: str, port: int, key: bytes | None, max_frame: int
    ) -> None:
        self.policy, self.config = policy, config
        self.host, self.port = host, port
        self.key = key  # that clients must have
        self.max_frame = max_frame  # bytes
        self.names: Mapping[str, str] = LIBERO_KEYS  # our observation keys by openpi's

    @classmethod
    def create(
        cls,
        *,
        host: str,
        port: int,
        api_key_env: str | None,
        max_frame_mb: int,
        observation: tuple[str, ...],
        target: tuple[str, ...] = (),
        **shared: Any,
    ) -> Serving:
        """From options as click gives them. Raises `UsageError`."""
        for each in target:
            resolve(each)
        # At least two, as of a run whose targets may have other observation keys each: a server's clients may too.
        policy, values = settings((target or (PLACEHOLDER,)) * 2, shared)
        config = EvalConfig.create(**{**values, "out": None, "display": "none"})
        serving = cls(policy, config, host, port, _key(api_key_env), max_frame_mb << 20)
        serving.names = {**LIBERO_KEYS, **dict(map(_pair, observation))}
        return serving

    @property
    def is_exposed(self) -> bool:
        """Whether strangers may use the policy."""
        return self.key is None and not _is_loopback(self.host)


def serve_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Decorate a command with the options of `rollout serve`."""
    for option in reversed(_OPTIONS):
        command = option(command)
    command = run_options(command)
    kept = {*SHARED, "host", "port", "api_key_env", "max_frame_mb", "observation", "target"}
    command.__click_params__ = [  # type: ignore[attr-defined]
        param
        for param in command.__click_params__  # type: ignore[attr-defined]
        if param.name in kept
    ]
    return command


def _key(variable: str | None) -> bytes | None:
    if variable is None:
        return None
    key = os.environ.get(variable, "")
    if not key or not key.isascii() or not key.isprintable() or " " in key:
        raise UsageError(
            f"--api-key-env {variable}: set that environment variable to the key, in ASCII and without spaces"
        )
    return key.encode()


def _pair(text: str) -> tuple[str, str]:
    theirs, equals, ours = text.partition("=")
    if not theirs or not equals or not ours:
        raise UsageError(
            f"--observation {text}: give THEIRS=OURS, e.g. observation/image=observation.images.top"
        )
    return theirs, ours


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
