"""What a display is, and the counters that it polls."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from enum import StrEnum
from math import inf
from typing import Final, Protocol

from msgspec import Struct, field

from rollout.types import EpisodeResult, EpisodeSpec

__all__ = ["Counters", "Display", "Latencies", "RunPlan", "TaskCounters", "Work", "WorkerState"]

KEPT: Final = 512  # forwards of each batch size: enough for a median, and bounded


class WorkerState(StrEnum):
    """What a worker does right now."""

    STARTING = "starting"
    IDLE = "idle"
    BUILDING = "building"  # first reset of a task: the simulator is being built
    RESETTING = "resetting"
    STEPPING = "stepping"
    WAITING = "waiting"  # for the policy


class TaskCounters(Struct):
    """One task's progress."""

    suite: str
    task: str
    instruction: str
    planned: int
    done: int = 0
    successes: int = 0
    failures: int = 0
    errors: int = 0
    active: int = 0


class Latencies(Struct):
    """How long the policy took, by batch size: its measured curve t(B)."""

    counts: dict[int, int] = field(default_factory=dict)  # forwards by batch size
    quickest_s: float = inf  # of all forwards: no decision takes less
    seconds: dict[int, deque[float]] = field(default_factory=dict)  # of the last `KEPT` of each size

    def note(self, size: int, seconds: float) -> None:
        """A forward of `size` decisions took `seconds`."""
        self.counts[size] = self.counts.get(size, 0) + 1
        self.quickest_s = min(self.quickest_s, seconds)
        kept = self.seconds.get(size)
        if kept is None:
            kept = self.seconds[size] = deque(maxlen=KEPT)
        kept.append(seconds)


class Work(Struct):
    """Where the workers' time went, in seconds summed over them. What runs is added when its episode ends."""

    start: float = 0.0  # processes made, simulators imported, or closed for the next
    build: float = 0.0
    built: int = 0  # simulators, in that time
    reset: float = 0.0
    simulate: float = 0.0  # pictures included where the simulator does not tell them apart
    render: float = 0.0
    wait: float = 0.0  # for the policy
    other: float = 0.0  # of episodes: messages, turns of the event loop, what was lost with a worker
    build_cpu: float = 0.0  # CPU time of the same, of all threads of the workers' processes
    reset_cpu: float = 0.0
    render_cpu: float = 0.0
    simulate_cpu: float = 0.0  # of the episodes that came to their end: the others' is not known,
    simulate_ended: float = 0.0  # whose part of `simulate` was this
    longest: float = 0.0  # one episode, its building included, with the quickest policy that was seen
    longest_cpu: float = 0.0  # the same where it was kept from a core: never longer than its CPU time


class Counters(Struct):
    """Everything that a display may show. The engine only ever adds to these numbers; displays poll them."""

    tasks: dict[tuple[str, int], TaskCounters] = field(
        default_factory=dict
    )  # by (suite, task_id), in plan order
    workers: list[WorkerState] = field(default_factory=list)
    pids: dict[int, int] = field(default_factory=dict)  # of the workers' latest processes, by worker
    planned: int = 0
    done: int = 0  # recorded by a resumed run's predecessor included
    resumed: int = 0
    steps: int = 0
    most_steps: int = 0  # to take, if each episode lasts to its horizon
    decisions: int = 0
    batches: int = 0
    retries: int = 0
    policy_busy_s: float = 0.0  # at least one call of the policy running
    batch_limit: int | None = None  # that memory left, where it ran out
    latencies: Latencies = field(default_factory=Latencies)
    sim_busy_s: float = 0.0  # summed over workers: resetting, stepping, rendering
    work: Work = field(default_factory=Work)
    policy_cpu_s: float = 0.0  # of the forwards, by all threads of this process
    started_s: float = 0.0  # time.monotonic() when the first episode could start
    began_s: float = 0.0  # time.monotonic() when the first worker was ready for one


class RunPlan(Struct, frozen=True, kw_only=True):
    """What is about to run, for a display's first lines."""

    targets: tuple[str, ...]
    policy: str
    specs: Sequence[EpisodeSpec]
    workers: int
    out: str | None


class Display(Protocol):
    """Shows a run. `start`, then `refresh` as often as `interval_s` says, `episode` for each record, then `finish`.

    A display never raises: a closed terminal must not cost an evaluation.
    """

    interval_s: float

    def start(self, plan: RunPlan, counters: Counters) -> None: ...

    def refresh(self) -> None: ...

    def episode(self, result: EpisodeResult) -> None: ...

    def note(self, message: str) -> None:
        """Say one line above the progress: a warning, a worker's death, a retry."""
        ...

    def finish(self) -> None:
        """Stop drawing and leave the terminal as it was found."""
        ...
