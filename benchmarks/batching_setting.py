"""Three ways to bring sleeping simulators and one policy together, for the batching workload."""

from __future__ import annotations

import asyncio
import selectors
import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from benchmarks.batching_work import Cores, Drawn
from rollout.display.base import Counters
from rollout.engine.batcher import Batcher
from rollout.policies.base import Request
from rollout.types import EpisodeSpec

__all__ = ["RULES", "WAIT_S", "Setting", "request_for", "run"]

WAIT_S = 0.010  # in life
RULES = ("greedy", "10 ms wait", "lock-step")

Infer = Callable[[Sequence[Request]], Sequence[Any]]


class Setting:
    """What all contenders have in common: the work, the cores, the simulators, the policy, and what it is asked."""

    def __init__(
        self, episodes: Sequence[Drawn], *, cores: int, simulators: int, infer: Infer, request: Request
    ) -> None:
        self.episodes, self.cores, self.simulators = episodes, cores, simulators
        self.infer, self.request = infer, request

    async def through_batcher(self, max_wait_s: float) -> None:
        """The engine's batcher, and simulators that know nothing of each other."""
        todo, cores = deque(self.episodes), Cores(self.cores, time.monotonic())
        batcher = Batcher(self.infer, Counters(), max_batch=self.simulators, max_wait_s=max_wait_s)
        with batcher:
            async with asyncio.TaskGroup() as running:
                for _ in range(self.simulators):
                    running.create_task(self._simulate(todo, cores, batcher))

    async def _simulate(self, todo: deque[Drawn], cores: Cores, batcher: Batcher) -> None:
        """One simulator: episode after episode, as an engine's worker."""
        while todo:
            episode = todo.popleft()
            batcher.active += 1
            await on_core(cores, episode.reset_s)
            for chunk_s in episode.chunks_s:
                await batcher.decide(self.request)
                await on_core(cores, chunk_s)
            batcher.active -= 1

    async def in_lock_step(self) -> None:
        """A vectorised evaluation: all wait for the slowest simulator at each decision, and for the longest episode.

        Kinder than most: it renders only for decisions too, and an episode that has ended costs no core.
        """
        for first in range(0, len(self.episodes), self.simulators):
            group = self.episodes[first : first + self.simulators]
            await self._together(each.reset_s for each in group)
            for decision in range(max(len(each.chunks_s) for each in group)):
                self.infer([self.request] * len(group))  # on the loop: nothing else could run meanwhile
                running = (each for each in group if decision < len(each.chunks_s))
                await self._together(each.chunks_s[decision] for each in running)

    async def _together(self, works_s: Iterable[float]) -> None:
        cores = Cores(self.cores, time.monotonic())
        async with asyncio.TaskGroup() as running:
            for work_s in works_s:
                running.create_task(on_core(cores, work_s))


def request_for(observation: dict[str, Any]) -> Request:
    """What every simulator asks, at every decision."""
    spec = EpisodeSpec(suite="", task="", task_id=0, episode=0, seed=0, horizon=1)
    return Request(spec, None, 0, 0, None, observation)  # type: ignore[arg-type]  # nobody looks at the task


async def on_core(cores: Cores, work_s: float) -> None:
    """Wait for a core, and hold it for `work_s`: one sleep, so that lateness does not add up."""
    now = time.monotonic()
    await asyncio.sleep(cores.end_of(work_s, now) - now)


def run(rule: str, setting: Setting, wait_s: float) -> float:
    """Seconds that it takes by `rule`, one of `RULES`. `wait_s`: what "10 ms" are on the setting's clock."""
    with asyncio.Runner(loop_factory=_precise_loop) as runner:
        began = time.monotonic()
        if rule == "lock-step":
            runner.run(setting.in_lock_step())
        else:
            runner.run(setting.through_batcher(0.0 if rule == "greedy" else wait_s))
        return time.monotonic() - began


def _precise_loop() -> asyncio.AbstractEventLoop:
    """`epoll` rounds timers up to a millisecond, which is ten in life at ten times its speed; `select` does not."""
    return asyncio.SelectorEventLoop(selectors.SelectSelector())
