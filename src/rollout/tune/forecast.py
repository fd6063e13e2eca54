"""How long a plan takes, episode by episode, in virtual time: the engine's own scheduler, with builds, resets and the
tail, in which the last episodes leave the others' workers idle."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from msgspec import Struct

from rollout.engine.scheduler import Costs, Scheduler, TaskKey
from rollout.types import EpisodeSpec

__all__ = ["Course", "Effort", "Forecast", "forecast"]


class Effort(Struct, frozen=True, kw_only=True):
    """What a worker does alone: seconds on a core, and seconds beside that."""

    cpu_s: float = 0.0
    rest_s: float = 0.0

    def seconds(self, busy: int, cores: int) -> float:
        """How long it takes while `busy` workers share the cores."""
        return self.rest_s + self.cpu_s * max(1.0, busy / cores)


class Course(Struct, frozen=True, kw_only=True):
    """What the episodes of a plan take, the policy and its simulators' steps apart."""

    build: Effort  # of one task's simulator, its first reset included
    reset: Effort
    decisions: Mapping[TaskKey, float]  # of one episode


class Forecast(Struct, frozen=True, kw_only=True):
    """A run, foretold."""

    wall_s: float  # from the first build to the last episode's end
    builds: int
    decisions: float


class _Stage(Struct):
    """What a worker does now: `left` of it, as a share."""

    work: Effort | None  # None: it decides and steps
    decisions: float = 0.0
    left: float = 1.0


def forecast(
    specs: Sequence[EpisodeSpec], course: Course, rate: Callable[[float], float], workers: int, cores: int
) -> Forecast:
    """Play the plan. `rate(n)` is how many decisions a second n simulators make together."""
    return _Run(specs, course, rate, workers, cores).play()


class _Run:
    def __init__(
        self,
        specs: Sequence[EpisodeSpec],
        course: Course,
        rate: Callable[[float], float],
        workers: int,
        cores: int,
    ) -> None:
        self._course, self._rate, self._cores, self._workers = course, rate, cores, workers
        one_s = 1.0 / rate(1)
        build_s = course.build.seconds(workers, cores)
        step_s = {spec.suite: course.decisions[spec.task_key] * one_s / spec.horizon for spec in specs}
        self._scheduler = Scheduler(
            specs, {suite.partition(":")[0]: Costs(build_s, each) for suite, each in step_s.items()}
        )
        self._holds: dict[int, TaskKey] = {}
        self._stages: dict[int, list[_Stage]] = {}  # of busy workers, the present one last
        self._began: dict[int, float] = {}
        self._now, self._builds, self._decisions = 0.0, 0, 0.0

    def play(self) -> Forecast:
        self._occupy(range(self._workers))
        while self._stages:
            ended = self._advance()
            self._occupy([*ended, *(each for each in range(self._workers) if each not in self._stages)])
        return Forecast(wall_s=self._now, builds=self._builds, decisions=self._decisions)

    def _occupy(self, workers: Sequence[int] | range) -> None:
        for worker in dict.fromkeys(workers):
            if not len(self._scheduler):
                return
            spec = self._scheduler.next(worker, self._holds.get(worker))
            if spec is None:
                continue
            key, course = spec.task_key, self._course
            decisions = course.decisions[key]
            builds = self._holds.get(worker) != key
            stages = [_Stage(None, decisions), _Stage(course.build if builds else course.reset)]
            self._builds += builds
            self._decisions += decisions
            self._holds[worker], self._stages[worker], self._began[worker] = key, stages, self._now

    def _advance(self) -> list[int]:
        """To the end of a stage, or of several at once. Which workers are free then."""
        busy = len(self._stages)
        seconds = {worker: self._seconds(stages[-1], busy) for worker, stages in self._stages.items()}
        took = min(seconds[worker] * stages[-1].left for worker, stages in self._stages.items())
        self._now += took
        free = []
        for worker, stages in list(self._stages.items()):
            stage = stages[-1]
            stage.left -= took / seconds[worker] if seconds[worker] > 0 else 1.0
            if stage.left > 1e-9:
                continue
            stages.pop()
            if not stages:
                del self._stages[worker]
                self._scheduler.measured(self._holds[worker], self._now - self._began[worker], None)
                free.append(worker)
        return free

    def _seconds(self, stage: _Stage, busy: int) -> float:
        """How long the whole of it would take at the present pace."""
        if stage.work is not None:
            return stage.work.seconds(busy, self._cores)
        return stage.decisions * busy / self._rate(busy)
