"""Which tasks' simulators can be built, learnt from what became of trying. Plain bookkeeping."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection

from rollout.engine.scheduler import TaskKey

__all__ = ["Builds"]

EPISODES = 2  # of a task, each of whose attempts ended with a worker dead or killed before it had built
TASKS = 3  # of a suite, that fail alike before any other was built: the fault is the installation's


class Builds:
    """Gives a task up once its simulator cannot be built, and a suite once that holds for all of it.

    A constructor that raises will raise again, unless another worker got it to work. A worker that dies or hangs while
    it builds may have been unlucky: episodes have their retries for that, and more than one of them has to use them up.
    """

    def __init__(self, tasks: Collection[TaskKey]) -> None:
        self._suites = {suite: {key for key in tasks if key[0] == suite} for suite, _ in tasks}
        self._trying: Counter[TaskKey] = Counter()  # workers that are building
        self._built: set[TaskKey] = set()
        self._exhausted: Counter[TaskKey] = Counter()  # episodes without an attempt left
        self._hopeless: dict[TaskKey, str] = {}  # and why

    def began(self, key: TaskKey) -> None:
        """A worker starts to build; `ended` follows."""
        self._trying[key] += 1

    def ended(self, key: TaskKey, *, built: bool) -> None:
        """It did, or did not."""
        self._trying[key] -= 1
        if built:
            self._built.add(key)
            self._hopeless.pop(key, None)

    def can_be_built(self, key: TaskKey) -> bool:
        """Whether any worker has."""
        return key in self._built

    def raised(self, key: TaskKey, why: str) -> None:
        """The constructor raised an exception."""
        if key not in self._built:
            self._hopeless.setdefault(key, why)

    def exhausted(self, key: TaskKey, why: str) -> None:
        """Every attempt at an episode ended in the build with a worker that died, or was killed for taking too long."""
        if key in self._built:
            return
        self._exhausted[key] += 1
        if self._exhausted[key] >= EPISODES:
            self._hopeless.setdefault(key, why)

    def hopeless(self, key: TaskKey) -> Collection[TaskKey]:
        """What nobody need try again, as `key` has failed: nothing, the task, or its whole suite."""
        if key not in self._hopeless:
            return ()
        suite = self._suites[key[0]]
        failed = [each for each in suite if each in self._hopeless]
        alike = len({self._hopeless[each] for each in failed}) == 1
        others = any(each in self._built or self._trying[each] > 0 for each in suite.difference(failed))
        return suite if alike and not others and len(failed) >= min(TASKS, len(suite)) else (key,)
