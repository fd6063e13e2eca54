"""Which episode a free worker runs next. Plain decisions: no process, no loop, no clock."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping

from msgspec import Struct

from rollout.types import EpisodeSpec

__all__ = ["Costs", "Scheduler", "TaskKey"]

TaskKey = tuple[str, int]  # (suite, task_id)

WORTH = 2.0  # how many times longer than building the rest of a task must take to be shared


class Costs(Struct):
    """What a family's episodes are expected to take, in seconds: rough figures at first, then the last measured."""

    build_s: float
    step_s: float  # of the horizon: an episode may end before


class _Queue(Struct):
    """What is left of one task."""

    specs: deque[EpisodeSpec]
    horizon: int
    owners: set[int]  # workers that hold its simulator
    costs: Costs  # shared by its family's tasks
    build_s: float | None = None
    measured: int = 0
    mean_s: float = 0.0  # of the measured episodes

    def left_s(self) -> float:
        """Expected seconds until the task's present owners are done with it."""
        episode_s = self.mean_s if self.measured else self.horizon * self.costs.step_s
        return len(self.specs) * episode_s / max(1, len(self.owners))

    def worth_joining(self) -> bool:
        """Whether one owner more would end it sooner, by enough to pay for what building takes from the others."""
        build_s = self.costs.build_s if self.build_s is None else self.build_s
        return not self.owners or self.left_s() > WORTH * build_s


class Scheduler:
    """Every spec is given out exactly once; a worker's death is retried by whoever holds the spec.

    A worker stays with the task whose simulator it holds. When that has nothing left, it starts the longest task that
    nobody works on; when there is none, it joins the task that would end last, unless building the simulator would
    take too long for what its owners need for the rest. The order never affects a result (design: determinism).
    """

    def __init__(self, specs: Iterable[EpisodeSpec], costs: Mapping[str, Costs] | None = None) -> None:
        """`costs` are by family, before anything is measured."""
        self._tasks: dict[TaskKey, _Queue] = {}
        self._held: dict[int, TaskKey] = {}
        known = dict(costs or {})
        for spec in specs:
            family = spec.suite.partition(":")[0]
            expected = known.setdefault(family, Costs(build_s=0.0, step_s=1.0))
            queue = self._tasks.setdefault(spec.task_key, _Queue(deque(), spec.horizon, set(), expected))
            queue.specs.append(spec)

    def next(self, worker: int, holds: TaskKey | None = None) -> EpisodeSpec | None:
        """The next spec for `worker`, whose simulator is that of `holds`.

        None where nothing is worth its while: for good where nothing is left, else until more is measured.
        """
        self._let_go(worker)  # first: its own claim must not keep it from a task whose simulator it lost
        own = self._tasks.get(holds) if holds is not None else None
        key = holds if own is not None and own.specs else self._longest_unowned() or self._worth_joining()
        if key is None:
            return None
        self._held[worker] = key
        self._tasks[key].owners.add(worker)
        return self._tasks[key].specs.popleft()

    def give_back(self, worker: int, spec: EpisodeSpec) -> None:
        """Take back what `next` gave to `worker`, who cannot run it."""
        self._let_go(worker)
        self._tasks[spec.task_key].specs.appendleft(spec)

    def drop(self, key: TaskKey) -> list[EpisodeSpec]:
        """Take a task's remaining specs off the plan: its simulator cannot be built."""
        left = list(self._tasks[key].specs)
        self._tasks[key].specs.clear()
        return left

    def measured(self, key: TaskKey, episode_s: float, build_s: float | None) -> None:
        """Learn what an episode of this task took, and building its simulator where it was built."""
        queue = self._tasks[key]
        queue.measured += 1
        queue.mean_s += (episode_s - queue.mean_s) / queue.measured
        queue.costs.step_s = queue.mean_s / queue.horizon
        if build_s is not None:
            queue.build_s = queue.costs.build_s = build_s

    def __len__(self) -> int:
        return sum(len(queue.specs) for queue in self._tasks.values())

    def _longest_unowned(self) -> TaskKey | None:
        return self._last([key for key, queue in self._tasks.items() if queue.specs and not queue.owners])

    def _worth_joining(self) -> TaskKey | None:
        last = self._last([key for key, queue in self._tasks.items() if queue.specs])
        return last if last is not None and self._tasks[last].worth_joining() else None

    def _last(self, keys: list[TaskKey]) -> TaskKey | None:
        return max(keys, key=lambda key: self._tasks[key].left_s(), default=None)

    def _let_go(self, worker: int) -> None:
        held = self._held.pop(worker, None)
        if held is not None:
            self._tasks[held].owners.discard(worker)
