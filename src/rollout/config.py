"""The configuration of a run: one frozen struct, from the command line, a TOML file or keyword arguments."""

from __future__ import annotations

import difflib
import os
from collections.abc import Iterable, Mapping
from hashlib import blake2b
from math import isfinite
from typing import Any, Literal

import msgspec
from msgspec import Struct, field

from rollout.errors import UsageError

__all__ = ["EvalConfig", "nearest"]

DisplayName = Literal["auto", "live", "plain", "json", "none"]


class EvalConfig(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What to evaluate and how. The fields of `AFFECTS_RESULTS` decide the numbers; the others never do."""

    targets: tuple[str, ...]
    episodes: int = 10  # per task
    tasks: tuple[int, ...] | None = None  # indices within each suite; None: all
    seed: int = 1000  # episode e has seed + e, as lerobot-eval
    horizon: int | None = None  # overrides every task's own
    protocol: str = "lerobot"
    options: dict[str, str] = field(default_factory=dict)  # --set
    n_action_steps: int | None = None  # None: the policy's own
    temporal_ensemble: float | None = (
        None  # decay of ACT's temporal ensembling; None: the policy's own, or none
    )
    clip_actions: bool = False  # into the action space's bounds; counted in the records
    policy_args: dict[str, Any] = field(default_factory=dict)
    dtype: Literal["bf16", "fp16", "fp32"] = "fp32"

    workers: int | Literal["auto"] = "auto"  # 0: one simulator inside this process, for debugging
    max_batch: int | Literal["auto"] = "auto"
    max_wait_ms: float = 0.0
    device: str = "auto"
    compile: bool = False
    trust_remote_code: bool = False  # whether a checkpoint may bring Python of its own
    deterministic: bool | Literal["auto"] = "auto"  # auto: on CPU
    render: Literal["auto", "gpu", "cpu"] = "auto"
    video: int | Literal["none", "failures", "all"] = "none"  # a number: the first episodes of each task
    out: str | None = None
    resume: bool = False
    shard: tuple[int, int] | None = None  # (k, n): every n-th episode from the k-th, 1 <= k <= n
    retries: int = 2  # after a worker's death or time-out; never after a failure
    recycle_after: int | None = (
        None  # episodes that one worker runs at most; one that grows is replaced anyway
    )
    start_timeout_s: float = 120.0
    reset_timeout_s: float = 300.0  # building the simulator included
    step_timeout_s: float = 60.0  # one step; a chunk of n gets n times as long
    display: DisplayName = "none"

    @classmethod
    def create(cls, **values: Any) -> EvalConfig:
        """Validate keyword arguments as a config. What is not given is the protocol's, else the field's default.

        Raises `UsageError` with one line that names the field.
        """
        for name in values:
            if name not in cls.__struct_fields__:
                raise UsageError(f"unknown setting {name!r}{nearest(name, cls.__struct_fields__)}")
        defaults = dict(PROTOCOL_DEFAULTS.get(values.get("protocol", ""), {}))
        if values.get("temporal_ensemble") is not None:
            defaults.pop("n_action_steps", None)  # which ensembling decides
        values = defaults | values
        if "out" in values and values["out"] is not None:
            values["out"] = os.fspath(values["out"])
        try:
            config = msgspec.convert(values, cls, strict=False)
        except msgspec.ValidationError as exc:
            raise UsageError(f"bad setting: {exc}") from exc
        config.validate()
        return config

    def replaced(self, **values: Any) -> EvalConfig:
        """This config with other values, validated as by `create`."""
        kept = {name: getattr(self, name) for name in self.__struct_fields__}
        if values.get("temporal_ensemble") is not None and self.n_action_steps == self._of_protocol.get(
            "n_action_steps"
        ):
            kept["n_action_steps"] = None  # nobody asked for it, and ensembling decides
        return self.create(**kept | values)

    @property
    def _of_protocol(self) -> Mapping[str, Any]:
        return PROTOCOL_DEFAULTS.get(self.protocol, {})

    def validate(self) -> None:
        """Raise `UsageError` where a value cannot be run."""
        if not self.targets:
            raise UsageError("no target: name at least one, e.g. metaworld:mt10 (see `rollout list`)")
        limits = {
            "episodes": 1,
            "horizon": 1,
            "n_action_steps": 1,
            "workers": 0,
            "max_batch": 1,
            "max_wait_ms": 0,
            "retries": 0,
            "recycle_after": 1,
            "seed": 0,
            "video": 0,
        }
        for name, least in limits.items():
            value = getattr(self, name)
            if isinstance(value, int | float) and value < least:
                raise UsageError(f"--{name.replace('_', '-')} {value}: must be at least {least}")
        for name in ("start_timeout_s", "reset_timeout_s", "step_timeout_s"):
            if not getattr(self, name) > 0:
                raise UsageError(f"--{name.removesuffix('_s').replace('_', '-')} must be above 0 seconds")
        if self.temporal_ensemble is not None and not isfinite(self.temporal_ensemble):
            raise UsageError("--temporal-ensemble: give a number, e.g. 0.01")
        if self.temporal_ensemble is not None and (self.n_action_steps or 1) > 1:
            raise UsageError(
                f"--temporal-ensemble decides at every step: it does not go with --n-action-steps {self.n_action_steps}"
            )
        if self.shard is not None and not 1 <= self.shard[0] <= self.shard[1]:
            raise UsageError(f"--shard {self.shard[0]}/{self.shard[1]}: K/N needs 1 <= K <= N")
        if self.resume and self.out is None:
            raise UsageError("--resume needs --out DIR: the directory of the run to go on with")
        if self.video != "none" and self.out is None:
            raise UsageError("video needs an output directory: give out=DIR")

    def fingerprint(self, policy: str, checkpoint: str | None = None) -> str:
        """A hash over everything that affects results, and of no run-time knob."""
        identity = msgspec.json.encode(self.identity(policy, checkpoint), order="sorted")
        return blake2b(identity, digest_size=16).hexdigest()

    def identity(self, policy: str, checkpoint: str | None = None) -> Mapping[str, Any]:
        """What affects results, by name; `checkpoint` is a digest of the policy's weights, where it is known."""
        names = [
            name for name in AFFECTS_RESULTS if name not in LATER or getattr(self, name) is not LATER[name]
        ]
        settings = {name: msgspec.to_builtins(getattr(self, name)) for name in names}
        return settings | {"policy": policy} | ({} if checkpoint is None else {"checkpoint": checkpoint})


PROTOCOL_DEFAULTS: Mapping[str, Mapping[str, Any]] = {
    "openpi": {"episodes": 50, "seed": 7, "n_action_steps": 5},
    "vla-eval": {"episodes": 50, "seed": 7},
}
"""What a protocol says of the run itself, where it is not what `EvalConfig` has anyway."""


AFFECTS_RESULTS = (
    "targets",
    "episodes",
    "tasks",
    "seed",
    "horizon",
    "protocol",
    "options",
    "n_action_steps",
    "temporal_ensemble",
    "clip_actions",
    "policy_args",
    "dtype",
)


LATER: Mapping[str, Any] = {"temporal_ensemble": None, "clip_actions": False}
"""Settings that came later, and their defaults: named only where they are others, so that runs from before are known by
the same hash, and can be resumed."""


def nearest(word: str, known: Iterable[str]) -> str:
    """`"; did you mean 'x'?"`, or the empty string where nothing is near."""
    match = difflib.get_close_matches(word, list(known), n=1, cutoff=0.5)
    return f"; did you mean {match[0]!r}?" if match else ""
