"""Pieces of real episodes, on real workers, for a while: what each call of a worker took, from both sides."""

from __future__ import annotations

import time
from collections import Counter, defaultdict
from collections.abc import Callable, Coroutine, Mapping, Sequence
from typing import Any, cast

import anyio
from msgspec import Struct, field, structs

from rollout.display.base import Counters, WorkerState
from rollout.engine.batcher import Batcher
from rollout.engine.builds import Builds
from rollout.engine.episode import Attempt, run_episode
from rollout.engine.execution import Execution
from rollout.engine.scheduler import TaskKey
from rollout.engine.slots import Slot, watch_deadlines
from rollout.errors import ProtocolError, RolloutError, SimulatorError, WorkerDied
from rollout.policies.base import Policy
from rollout.resources import cpu_time
from rollout.sim.calls import Worker
from rollout.sim.protocol import Built, Cost, Reset, ResetDone, RunDone
from rollout.tune.lengths import Seen
from rollout.types import EpisodeSpec, SuiteInfo
from rollout.values import Array, Items

__all__ = ["Log", "Stage", "play"]

Specs = Callable[[int, TaskKey | None], EpisodeSpec | None]
"""`specs(slot, holds)`: what a slot plays next, and None where it is done."""


class Log(Struct, kw_only=True):
    """What some pieces took."""

    # Wall and CPU seconds of each. The first reset of a simulator is a part of its build: it makes what renders.
    builds: list[tuple[float, float]] = field(default_factory=list)
    resets: list[tuple[float, float]] = field(default_factory=list)
    chunks_s: list[float] = field(default_factory=list)  # from an answer until the simulator has done it
    cpu_s: dict[TaskKey, float] = field(
        default_factory=lambda: defaultdict(float)
    )  # of the workers, for chunks
    turns: Counter[TaskKey] = field(default_factory=Counter)  # chunks that were executed
    stepping_s: float = 0.0  # whole turns, waits for the policy included, summed over workers
    steps: int = 0
    cost: Cost = Cost()  # of the pieces that came to an end: of them alone is it told,
    told: int = 0  # and they had so many decisions
    seen: dict[TaskKey, list[Seen]] = field(default_factory=lambda: defaultdict(list))

    @property
    def decisions(self) -> int:
        """Chunks that were executed."""
        return len(self.chunks_s)


class Stage(Struct, frozen=True, kw_only=True):
    """What pieces are played on."""

    suites: Mapping[TaskKey, SuiteInfo]  # each with that task alone
    options: Mapping[str, Mapping[str, str]]  # by family
    execution: Execution
    horizon: int | None = None  # of the pieces; None: the episodes' own


class _Over(Exception):
    """The time is up."""


async def play(
    stage: Stage,
    slots: Sequence[Slot],
    specs: Specs,
    policy: Policy,
    until_s: float,
    log: Log | None = None,
) -> Log:
    """Play what `specs` gives on all `slots` until `until_s` (of `time.perf_counter`), each at least one chunk; a piece
    stops between two chunks then, and its worker can go on with another one. A `log` is written as they are played.

    Raises `RolloutError` where a simulator fails, and what the policy raises.
    """
    log = Log() if log is None else log
    counters = Counters(workers=[WorkerState.IDLE] * (1 + max(slot.index for slot in slots)))
    batcher = Batcher(
        policy.infer,
        counters,
        max_batch=policy.spec.max_batch or len(slots),
        inline=policy.spec.inline,
        calls=policy.spec.calls,
    )
    failures: list[RolloutError] = []
    with batcher:
        async with anyio.create_task_group() as background:
            background.start_soon(watch_deadlines, list(slots))
            async with anyio.create_task_group() as workers:

                async def work(slot: Slot) -> None:
                    try:
                        await _play(stage, slot, specs, policy, batcher, counters, log, until_s)
                    except RolloutError as exc:
                        failures.append(exc)
                        workers.cancel_scope.cancel()

                for slot in slots:
                    workers.start_soon(work, slot)
            background.cancel_scope.cancel()
    if failures:
        raise failures[0]
    return log


async def _play(
    stage: Stage,
    slot: Slot,
    specs: Specs,
    policy: Policy,
    batcher: Batcher,
    counters: Counters,
    log: Log,
    until_s: float,
) -> None:
    played = False  # once, however late it is: something must be known
    while not (played and time.perf_counter() >= until_s):
        spec = specs(slot.index, slot.holds)
        if spec is None:
            return
        played = True
        family = spec.suite.partition(":")[0]
        timed = _Timed(slot, log, spec, stage.horizon, until_s)
        try:
            await timed.ready(family, stage.options[family])
            await run_episode(_attempt(stage, spec), cast(Worker, timed), policy, batcher, counters)
        except _Over:
            timed.cut()
        except (SimulatorError, WorkerDied, ProtocolError) as exc:
            await slot.discard()
            raise RolloutError(f"{spec.task} episode {spec.episode}: {exc}") from exc


def _attempt(stage: Stage, spec: EpisodeSpec) -> Attempt:
    suite = stage.suites[spec.task_key]
    return Attempt(
        spec=spec,
        suite=suite,
        video=None,
        number=1,
        execution=stage.execution,
        builds=Builds([spec.task_key]),
    )


class _Timed:
    """A worker whose calls are timed, and who is asked for no chunk once the time is up."""

    def __init__(self, slot: Slot, log: Log, spec: EpisodeSpec, horizon: int | None, until_s: float) -> None:
        self._slot, self._log, self._spec = slot, log, spec
        self._horizon = min(horizon or spec.horizon, spec.horizon)
        self._until_s = until_s
        self._turn_s: float | None = None  # when the present turn began: with a decision's request
        self._steps = self._decisions = 0
        self._building = False

    async def ready(self, family: str, options: Mapping[str, str]) -> None:
        """Have the slot's worker ready for the episode."""
        held = self._slot.worker
        self._began, self._cpu_began = time.perf_counter(), _cpu_time(held)
        self._worker = await self._slot.ready(family, options, self._spec.task_key)
        if self._worker is not held:
            self._cpu_began = 0.0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._worker, name)

    async def build(self, suite: SuiteInfo, task_id: int) -> Built:
        self._building = True
        return await self._worker.build(suite, task_id)

    async def reset(self, command: Reset) -> ResetDone:
        command = structs.replace(command, spec=structs.replace(command.spec, horizon=self._horizon))
        began = time.perf_counter()
        done = await self._worker.reset(command)
        self._turn_s = now = time.perf_counter()
        if self._building:  # with what a new worker imports
            self._building = False
            cpu_s = _cpu_time(self._worker) - self._cpu_began
            self._log.builds.append((now - self._began, cpu_s))
        else:
            self._log.resets.append((now - began, done.cost.cpu))
        return done

    def run(self, actions: Array | Items) -> Coroutine[None, None, RunDone]:
        if self._decisions and time.perf_counter() >= self._until_s:
            raise _Over
        return self._run(actions)

    async def _run(self, actions: Array | Items) -> RunDone:
        cpu_began, began = _cpu_time(self._worker), time.perf_counter()
        done = await self._worker.run(actions)
        ended, log = time.perf_counter(), self._log
        log.cpu_s[self._spec.task_key] += _cpu_time(self._worker) - cpu_began
        log.turns[self._spec.task_key] += 1
        log.chunks_s.append(ended - began)
        log.stepping_s += ended - (self._turn_s or began)
        self._turn_s = ended
        self._steps += len(done.rewards) // 8
        log.steps += len(done.rewards) // 8
        self._decisions += 1
        if done.cost is not None:
            log.told += self._decisions
            log.cost = Cost(
                log.cost.cpu + done.cost.cpu,
                log.cost.render + done.cost.render,
                log.cost.render_cpu + done.cost.render_cpu,
            )
        if done.terminated or done.truncated:
            at_horizon = self._steps >= self._horizon and not done.terminated
            log.seen[self._spec.task_key].append(Seen(self._steps, not at_horizon))
        return done

    def cut(self) -> None:
        """The piece ends here."""
        self._log.seen[self._spec.task_key].append(Seen(self._steps, False))


def _cpu_time(worker: Worker | None) -> float:
    return 0.0 if worker is None or worker.pid is None else cpu_time(worker.pid)
