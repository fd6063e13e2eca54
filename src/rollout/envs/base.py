"""What a simulator is. A new benchmark is one module with one such class and one `rollout.envs` entry point."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, Literal, Protocol

import numpy as np
from msgspec import Struct

from rollout.types import EpisodeSpec, Observation, ObservationRequest, SuiteInfo, TaskInfo

__all__ = ["Requirement", "Simulator", "Step"]


class Step(Struct, frozen=True):
    """What one action did."""

    reward: float
    terminated: bool
    truncated: bool
    success: bool | None  # the adapter's rule at this step; None: the environment said nothing about success
    observation: Observation | None  # None unless it was asked for
    # Something that may have told of success could not be read: without a success, the outcome is unknown.
    unreadable: bool = False


class Requirement(Struct, frozen=True):
    """A module that must be importable, and the command that installs it."""

    module: str
    install: str


class Simulator(Protocol):
    """One task's simulator, living in a worker process.

    The constructor touches no GPU or GL; `build` makes the simulator proper, once, before the first `reset`. `reset`
    makes the episode a function of `spec` alone, whatever was simulated before. Observations are copied
    before the next call, so they may be the simulator's own buffers. An exception out of `build` makes every episode of
    the task an error, reported once; out of any other method, that episode.
    """

    family: ClassVar[str]  # the part of a target before the colon
    names: ClassVar[
        tuple[str, ...]
    ]  # what may follow it, for `rollout list` and for suggestions; () where open-ended
    aliases: ClassVar[Mapping[str, str]]  # other spellings of whole targets, e.g. libero_spatial
    requires: ClassVar[tuple[Requirement, ...]]
    options: ClassVar[
        Mapping[str, str]
    ]  # what `--set` accepts: name -> one line that says what it does; "*": anything
    # Whose evaluation rules it knows: the name of a `--protocol` -> the values of `options` that it stands for.
    protocols: ClassVar[Mapping[str, Mapping[str, str]]]
    needs_gl: ClassVar[
        Literal["always", "cameras", "never"]
    ]  # when MuJoCo's rendering libraries must be there
    worker_memory_gb: ClassVar[float]  # what one worker holds, for `--workers auto`
    # Rough figures in seconds, on one core, for the scheduler until it has measured: of `build`, and of one step.
    build_s: ClassVar[float]
    step_s: ClassVar[float]

    info: TaskInfo  # complete once `build` returned
    # Whether the goal held when the episode began, where the simulator can tell. An adapter may lack it.
    success_at_reset: bool

    @classmethod
    def expand(cls, name: str) -> tuple[str, ...]:
        """The suites that a target stands for: `("name",)`, or several for a group such as `libero:all`."""
        ...

    @classmethod
    def describe(cls, name: str, options: Mapping[str, str]) -> SuiteInfo:
        """List the tasks of suite `name`. Runs in a worker; may import the simulator. Raises `UsageError`."""
        ...

    @classmethod
    def preload(cls) -> None:
        """Import what `build` imports, in the process that workers are forked from: they then start at once.

        An adapter may lack it. Called with rendering switched off (`rollout.envs.gl`): no GL and no
        CUDA context may be made here, and no thread started. What it raises is ignored: the workers import for
        themselves then, and say what is wrong.
        """
        ...

    def __init__(self, suite: SuiteInfo, task_id: int, options: Mapping[str, str]) -> None: ...

    def build(self) -> None:
        """Build the simulator (seconds, for a LIBERO scene)."""
        ...

    def reset(self, spec: EpisodeSpec, observe: ObservationRequest) -> Observation:
        """Start the episode and return the first observation, of the keys that `observe` wants."""
        ...

    def step(self, action: Any, observe: bool) -> Step:
        """Execute one action: an array in the action space's shape and dtype, or a nested value for nested spaces.

        Where `observe` is false, nothing is rendered and `Step.observation` is None.
        """
        ...

    def render(self) -> np.ndarray:
        """The current frame for the video, uint8 (height, width, 3). An exception costs the video, not the episode."""
        ...

    def close(self) -> None: ...
