"""Which episode a free worker runs next. Plain decisions: no process, no loop, no clock."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable

from msgspec import Struct

from rollout.types import EpisodeSpec

__all__ = ["Scheduler", "TaskKey"]

TaskKey = tuple[str, int]  # (suite, task_id)


class _Queue(Struct):
    """What is left of one task."""

    specs: deque[EpisodeSpec]
    horizon: int
    owners: set[int]  # workers that hold its simulator
    build_s: float = 0.0
    measured: int = 0
    mean_s: float = 0.0  # of the measured episodes


class Scheduler:
    """Every spec is given out exactly once; a worker's death is retried by whoever holds the spec.

    A worker stays with the task whose simulator it holds. When that has nothing left, it starts the longest task that
    nobody works on; when there is none, it joins the task that would end last, unless building the simulator would
    take longer than its owners need for the rest. The order never affects a result (design: determinism).
    """

    def __init__(self, specs: Iterable[EpisodeSpec]) -> None:
        self._tasks: dict[TaskKey, _Queue] = {}
        self._held: dict[int, TaskKey] = {}
        self._pace = 1.0  # seconds per step of horizon, for tasks that were not measured yet
        for spec in specs:
            queue = self._tasks.setdefault(spec.task_key, _Queue(deque(), spec.horizon, set()))
            queue.specs.append(spec)

    def next(self, worker: int, holds: TaskKey | None = None) -> EpisodeSpec | None:
        """The next spec for `worker`, whose simulator is that of `holds`. None where nothing is left for it."""
        self._let_go(worker)  # first: its own claim must not keep it from a task whose simulator it lost
        own = self._tasks.get(holds) if holds is not None else None
        key = holds if own is not None and own.specs else self._longest_unowned() or self._worth_joining()
        if key is None:
            return None
        self._held[worker] = key
        self._tasks[key].owners.add(worker)
        return self._tasks[key].specs.popleft()

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
        self._pace = queue.mean_s / queue.horizon
        if build_s is not None:
            queue.build_s = build_s

    def __len__(self) -> int:
        return sum(len(queue.specs) for queue in self._tasks.values())

    def _longest_unowned(self) -> TaskKey | None:
        free = [key for key, queue in self._tasks.items() if queue.specs and not queue.owners]
        return max(free, key=lambda key: self._work_left(self._tasks[key]), default=None)

    def _worth_joining(self) -> TaskKey | None:
        open_tasks = [key for key, queue in self._tasks.items() if queue.specs]
        last = max(open_tasks, key=lambda key: self._work_left(self._tasks[key]), default=None)
        if last is None:
            return None
        queue = self._tasks[last]
        return last if not queue.owners or self._work_left(queue) > queue.build_s else None

    def _work_left(self, queue: _Queue) -> float:
        """Expected seconds until the task's present owners are done with it."""
        episode_s = queue.mean_s if queue.measured else queue.horizon * self._pace
        return len(queue.specs) * episode_s / max(1, len(queue.owners))

    def _let_go(self, worker: int) -> None:
        held = self._held.pop(worker, None)
        if held is not None:
            self._tasks[held].owners.discard(worker)
