"""What parent and child say to each other: length-prefixed MessagePack frames, one typed decoder a side.

A frame is a 4-byte little-endian length and that many bytes of MessagePack. Strictly in turn: the parent sends a
`Command`, the child answers with one `Reply`. Nothing that a child sends is ever unpickled.
"""

from __future__ import annotations

from typing import Annotated, Final, Literal, TypeAlias

import msgspec
from msgspec import Meta, Struct

from rollout.types import EpisodeSpec, ObservationRequest, SuiteInfo, TaskInfo, VideoRequest
from rollout.values import Array, Items, Value

__all__ = [
    "MAX_FRAME",
    "MAX_TEXT",
    "MAX_TRACEBACK",
    "Build",
    "Built",
    "Close",
    "Closed",
    "Command",
    "Cost",
    "Describe",
    "Described",
    "Failed",
    "Release",
    "Released",
    "Reply",
    "Reset",
    "ResetDone",
    "Run",
    "RunDone",
    "Shared",
    "Start",
    "Started",
    "command_decoder",
    "reply_decoder",
]

MAX_FRAME: Final = 1 << 30
"""The longest frame that either side accepts, in bytes: 1 GiB. A longer length means that the stream is garbage."""

MAX_TEXT: Final = 4096
MAX_TRACEBACK: Final = 64 << 10
"""The most characters of an exception's message, and of its traceback, that enter a record."""


class Shared(Struct, frozen=True, array_like=True, tag="h"):
    """An array in the memory that the worker shares with its parent (`rollout.sim.slab`): dtype, shape, first byte."""

    dtype: str
    shape: tuple[int, ...]
    offset: int


WireObservation: TypeAlias = dict[str, Value | Shared]
Seconds: TypeAlias = Annotated[float, Meta(ge=-1e9, le=1e9)]  # finite, as a record's numbers must be


class Cost(Struct, frozen=True, array_like=True):
    """What a stretch of a worker's work took."""

    cpu: Seconds = 0.0  # of the cores, by all threads of its process
    render: Seconds = 0.0  # of wall time for pictures, the policy's and the video's
    render_cpu: Seconds = 0.0  # the same of the cores; a part of `cpu`


class _Message(Struct, frozen=True, array_like=True, tag_field="kind", tag=True):
    pass


class Start(_Message, frozen=True):
    """First message: what the child needs before it imports a simulator."""

    family: str  # entry point name in `rollout.envs`
    path: tuple[str, ...]  # the parent's sys.path
    environ: dict[str, str]  # applied before any simulator is imported
    options: dict[str, str]  # --set
    # Gymnasium's, by `<id>` or `<module>:<id>`: JSON or pickled (see `rollout.envs.gymnasium_handover`).
    registrations: dict[str, bytes] = {}


class Started(_Message, frozen=True):
    """The family's adapter is imported."""

    pid: int


class Describe(_Message, frozen=True):
    """List the tasks of a suite."""

    name: str


class Described(_Message, frozen=True):
    suite: SuiteInfo


class Build(_Message, frozen=True):
    """Build a task's simulator. Apart from the reset, so that a death tells which of the two was to blame."""

    suite: SuiteInfo
    task_id: int


class Built(_Message, frozen=True):
    task: TaskInfo
    build_s: Seconds
    remarks: tuple[str, ...] = ()  # lines for the user (`rollout.envs.remarks`)
    cost: Cost = Cost()


class Reset(_Message, frozen=True):
    """Start an episode of the task whose simulator was built."""

    spec: EpisodeSpec
    observe: ObservationRequest
    video: VideoRequest | None
    slot: int | None = None  # of the shared memory, for the reply's large arrays; None: send them


class ResetDone(_Message, frozen=True):
    observation: WireObservation
    reset_s: Seconds
    render_s: Seconds
    success_at_reset: bool = False
    remarks: tuple[str, ...] = ()
    cost: Cost = Cost()


class Run(_Message, frozen=True):
    """Execute a whole action chunk, or as much of it as the episode lasts."""

    actions: Array | Items  # leading axis: steps; items where the action space is nested
    slot: int | None = None  # as a reset's


class RunDone(_Message, frozen=True):
    """What the chunk did. `observations` are the last `n_obs_steps` ones, oldest first; none where it ended."""

    rewards: bytes  # float64 in the machine's byte order, one a step executed
    terminated: bool
    truncated: bool
    success: bool | None  # at any step of the episode so far
    observations: tuple[WireObservation, ...]
    sim_s: Seconds
    render_s: Seconds
    video: bool = False  # the one that was asked for is complete, where the parent asked for it
    remarks: tuple[str, ...] = ()
    cost: Cost | None = None  # of all chunks of the episode, where it ended


class Release(_Message, frozen=True):
    """Close the simulator and stay: another task's is to come. Within a time limit of its own, as a close may hang."""


class Released(_Message, frozen=True):
    pass


class Close(_Message, frozen=True):
    """Close the simulator and exit."""


class Closed(_Message, frozen=True):
    pass


class Failed(_Message, frozen=True):
    """An exception, as data."""

    type: str
    message: str
    traceback: str
    building: bool = False  # raised while the simulator was built
    ends_run: Literal["usage", "results"] | None = (
        None  # not this episode's fault: a `UsageError`, a `ResultsError`
    )


Command: TypeAlias = Start | Describe | Build | Reset | Run | Release | Close
Reply: TypeAlias = Started | Described | Built | ResetDone | RunDone | Released | Closed | Failed


def command_decoder() -> msgspec.msgpack.Decoder[Command]:
    """The child's decoder."""
    return msgspec.msgpack.Decoder(Command)


def reply_decoder() -> msgspec.msgpack.Decoder[Reply]:
    """The parent's decoder."""
    return msgspec.msgpack.Decoder(Reply)
