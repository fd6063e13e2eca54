"""Which tasks' simulators can be built, learnt from what became of trying. Plain bookkeeping."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection

from rollout.engine.scheduler import TaskKey
from rollout.types import EpisodeSpec

__all__ = ["Builds"]

COMMON = 3  # tasks that fail alike before anything was built: the fault is the installation's


class Builds:
    """Gives a task up once its simulator cannot be built, and the whole run once none can.

    A constructor that raises will raise again. A worker that dies or hangs while it builds may have been unlucky, or
    its first episode's reset is to blame: that takes more deaths than an episode has retries, of two episodes.
    """

    def __init__(self, tasks: Collection[TaskKey], retries: int) -> None:
        self._n_tasks, self._retries = len(set(tasks)), retries
        self._built: set[TaskKey] = set()
        self._deaths: defaultdict[TaskKey, list[int]] = defaultdict(list)  # the episodes that met them
        self._hopeless: dict[TaskKey, str] = {}  # and the kind of the failure

    def built(self, key: TaskKey) -> None:
        """A worker has built it: from now on a death is not the build's fault."""
        self._built.add(key)

    def raised(self, key: TaskKey, kind: str) -> None:
        """The constructor raised an exception of type `kind`."""
        self._hopeless.setdefault(key, kind)

    def died(self, spec: EpisodeSpec, kind: str) -> None:
        """A worker died, or was killed for taking too long, before the first episode on it could start."""
        key = spec.task_key
        if key in self._built:
            return
        deaths = self._deaths[key]
        deaths.append(spec.episode)
        if len(deaths) > self._retries and len(set(deaths)) > 1:
            self._hopeless.setdefault(key, kind)

    def hopeless(self, key: TaskKey) -> bool:
        """Whether nobody need try this task again."""
        return key in self._hopeless

    @property
    def common(self) -> bool:
        """Whether nobody need try any task again: several failed, all alike, and none was ever built."""
        alike = len(set(self._hopeless.values())) == 1
        return alike and not self._built and len(self._hopeless) >= min(COMMON, self._n_tasks)
