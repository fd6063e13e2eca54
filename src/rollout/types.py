"""The frozen structs that every part shares: what is planned, what is observed, what was measured."""

from __future__ import annotations

from enum import StrEnum
from typing import Any, TypeAlias

from msgspec import Struct, field, structs

from rollout.spaces import Space

__all__ = [
    "EpisodeFailure",
    "EpisodeResult",
    "EpisodeSpec",
    "Observation",
    "ObservationRequest",
    "Outcome",
    "ProtocolUsed",
    "Spent",
    "SuiteInfo",
    "Task",
    "TaskInfo",
    "VideoMode",
    "VideoRequest",
]

Observation: TypeAlias = dict[str, Any]
"""What a policy gets: `observation.images.<camera>` (uint8, HWC), `observation.state` (float32),
`observation.environment_state` (float32), `task` (str). Generic Gymnasium leaves keep their own dtype and container."""


class EpisodeSpec(Struct, frozen=True, kw_only=True):
    """One planned episode: all that it depends on beside the config."""

    suite: str  # e.g. "metaworld:mt10"
    task: str  # e.g. "reach-v3"
    task_id: int  # index within the suite
    episode: int  # 0 .. episodes-1, per task
    seed: int
    init_state: int | None = None  # LIBERO's fixed start index
    horizon: int  # most steps that the episode may take

    @property
    def key(self) -> tuple[str, int, int]:
        """What identifies the episode within a run; its record has the same."""
        return (self.suite, self.task_id, self.episode)

    @property
    def task_key(self) -> tuple[str, int]:
        """What identifies its task."""
        return (self.suite, self.task_id)


class Task(Struct, frozen=True, kw_only=True):
    """One task as a suite lists it, before any simulator is built."""

    task: str
    task_id: int
    instruction: str = ""  # natural language; empty where the simulator has none
    horizon: int | None = None  # None: the simulator has no limit of its own
    n_init_states: int | None = None  # None: the start depends on the seed alone


class SuiteInfo(Struct, frozen=True, kw_only=True):
    """A suite's tasks, and the versions of the packages that decide its numbers."""

    suite: str
    tasks: tuple[Task, ...]
    versions: dict[str, str] = {}

    def task(self, task_id: int) -> Task:
        """The task with this id. Raises `KeyError`."""
        for task in self.tasks:
            if task.task_id == task_id:
                return task
        raise KeyError(task_id)

    def only(self, task_id: int) -> SuiteInfo:
        """The suite with one of its tasks, as a worker needs it."""
        return structs.replace(self, tasks=(self.task(task_id),))


class TaskInfo(Struct, frozen=True, kw_only=True):
    """What a built simulator says of its task."""

    suite: str
    task: str
    task_id: int
    instruction: str
    horizon: int | None
    fps: int  # control steps per simulated second; the frame rate of videos
    action_space: Space
    observation_space: dict[str, Space]  # by observation key
    success_rule: str | None  # in words, for the record; None: no success signal is known
    environment_state: tuple[
        str, ...
    ] = ()  # the elements of `observation.environment_state`, where they have names
    goal: tuple[
        tuple[str, ...], ...
    ] = ()  # predicates that must all hold, e.g. (("on", "bowl_1", "plate_1"),)


class ObservationRequest(Struct, frozen=True, kw_only=True):
    """What the policy reads. `keys` None means everything; only what is asked for is produced, rendered and sent."""

    keys: tuple[str, ...] | None = None
    n_obs_steps: int = 1

    def wants(self, key: str) -> bool:
        """Whether `key` was asked for."""
        return self.keys is None or key in self.keys


class ProtocolUsed(Struct, frozen=True, kw_only=True):
    """Whose evaluation rules a run followed, and each value of them as it was used, overrides included."""

    name: str  # e.g. "lerobot"
    fingerprint: str  # a hash over all that follows: equal where two runs are comparable
    seed: int  # of each task's first episode
    horizon: int | None  # where it overrides the suites' own
    n_action_steps: int | None  # where it overrides the policy's own
    temporal_ensemble: float | None = None  # the same
    clip_actions: bool = False
    options: dict[str, dict[str, str]]  # by simulator family, as `--set` takes them


class VideoMode(StrEnum):
    """Which of the requested videos are kept."""

    FAILURES = "failures"  # dropped when the episode succeeds
    ALL = "all"


class VideoRequest(Struct, frozen=True, kw_only=True):
    """Record this episode: every step is rendered, encoded in the child and written to `path`."""

    path: str
    keep: VideoMode = VideoMode.ALL


class Outcome(StrEnum):
    """How an episode ended. An error is never a failure and never enters a rate; neither does an unknown."""

    SUCCESS = "success"
    FAILURE = "failure"
    ERROR = "error"
    UNKNOWN = "unknown"  # measured to its end, but the environment has no success signal


class EpisodeFailure(Struct, frozen=True, kw_only=True):
    """Why an episode could not be measured: an exception, a death or a time-out, as data."""

    type: str
    message: str
    traceback: str = ""


class Spent(Struct, frozen=True, kw_only=True):
    """Where an episode's wall time went, in seconds."""

    reset: float = 0.0  # building the simulator included
    sim: float = 0.0
    render: float = 0.0
    wait: float = 0.0  # for the policy


class EpisodeResult(Struct, frozen=True, kw_only=True):
    """One episode's record, as it stands in `episodes.jsonl`. Build it with `measured` or `failed`."""

    suite: str
    task: str
    task_id: int
    episode: int
    seed: int
    init_state: int | None
    outcome: Outcome
    success: bool | None  # None: no success signal, or an error
    success_at_reset: bool = False  # the goal held before the first step, where the simulator tells
    steps: int
    sum_reward: float | None  # None where a reward was not finite
    max_reward: float | None
    nonfinite_reward: bool = False
    terminated: bool
    truncated: bool
    clipped: int = 0  # steps whose action `--clip-actions` changed
    attempts: int
    error: EpisodeFailure | None = None
    digest: str | None  # over actions, rewards and ending; None for errors
    time_s: Spent = field(default_factory=Spent)
    video: str | None = None  # relative to the results directory
    built: bool = False  # this episode had its simulator built

    @property
    def key(self) -> tuple[str, int, int]:
        """What identifies the episode within a run."""
        return (self.suite, self.task_id, self.episode)

    @property
    def task_key(self) -> tuple[str, int]:
        """What identifies its task."""
        return (self.suite, self.task_id)
