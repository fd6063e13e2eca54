"""The run: one coroutine a worker slot, no barrier anywhere."""

from __future__ import annotations

import os
import time
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence

import anyio
from msgspec import Struct

from rollout.display.base import Counters, Display, WorkerState
from rollout.engine.batcher import Batcher
from rollout.engine.builds import Builds
from rollout.engine.episode import Attempt, Measured, run_episode
from rollout.engine.execution import Execution
from rollout.engine.failures import death, why
from rollout.engine.growing import Grow, Growing
from rollout.engine.scheduler import Costs, Scheduler, TaskKey
from rollout.engine.session import failed
from rollout.engine.slots import Slot, watch_deadlines
from rollout.engine.warnings import Warnings
from rollout.errors import ProtocolError, RolloutError, SimulatorError, UsageError, WorkerDied
from rollout.policies.base import Policy
from rollout.types import EpisodeFailure, EpisodeResult, EpisodeSpec, Outcome, SuiteInfo, VideoRequest
from rollout.values import Value

__all__ = ["Record", "Run", "RunSettings"]

MOST_ALIKE = 10  # notes of retries
# How often in a row a slot may fail to get a worker: soon the others do its work; alone, it waits for better times.
SETBACKS_WITH_OTHERS, SETBACKS_ALONE, SETBACK_PAUSE_S = 2, 10, 1.0

Record = Callable[[EpisodeResult, Value | None], None]


class _Setback(Exception):
    """A slot could not have a worker for its episode, which is not to blame."""


class RunSettings(Struct, frozen=True, kw_only=True):
    """What a run needs to know beside the plan."""

    suites: Mapping[str, SuiteInfo]
    options: Mapping[str, Mapping[str, str]]  # by family
    costs: Mapping[str, Costs]  # by family, before anything is measured
    execution: Execution
    max_batch: int
    max_wait_s: float
    retries: int
    inline: bool
    video: Callable[[EpisodeSpec], VideoRequest | None]


class Run:
    """Executes a list of episodes on slots. What it measured goes to `record`, as soon as each episode ends."""

    def __init__(
        self,
        specs: Sequence[EpisodeSpec],
        policy: Policy,
        settings: RunSettings,
        counters: Counters,
        record: Record,
        display: Display,
        grow: Grow | None = None,
    ) -> None:
        """`grow` runs beside it, and may change what there is to change."""
        self._grow = grow
        self._scheduler = Scheduler(specs, settings.costs)
        self._news = anyio.Event()  # an episode ended: what was not worth a worker's while may be now
        self._policy, self._settings, self._counters = policy, settings, counters
        self._record_result, self._display = record, display
        self.warnings = Warnings(display.note)
        self._suites = {spec.task_key: settings.suites[spec.suite].only(spec.task_id) for spec in specs}
        self._builds = Builds(self._suites)
        self._told: set[str] = set()  # why something could not be built
        self._told_growth = False
        self._equipped: set[int] = set()  # slots that have a worker, and an episode on it
        self._retries_told: Counter[str] = Counter()  # by kind of death
        self._fatal: RolloutError | None = None
        self._scope = anyio.CancelScope()

    def stop(self) -> None:
        """End the run now; what is recorded stays."""
        self._scope.cancel()

    async def execute(self, slots: list[Slot]) -> None:
        """Until every episode is recorded or the run was stopped. Raises what no episode can answer for: a
        `PolicyError`, a `UsageError`, a `ResultsError`."""
        settings = self._settings
        batcher = Batcher(
            self._policy.infer,
            self._counters,
            max_batch=settings.max_batch,
            max_wait_s=settings.max_wait_s,
            inline=settings.inline or self._policy.spec.inline,
            calls=self._policy.spec.calls,
            note=self._display.note,
        )
        self._counters.started_s = time.monotonic()
        with self._scope, batcher:
            async with anyio.create_task_group() as background:
                background.start_soon(watch_deadlines, slots)
                background.start_soon(self._refresh_display)
                async with anyio.create_task_group() as workers:
                    for slot in slots:
                        workers.start_soon(self._work, slot, batcher)

                    def take_on(slot: Slot) -> None:
                        slots.append(slot)
                        self._counters.workers.append(WorkerState.IDLE)
                        workers.start_soon(self._work, slot, batcher)

                    if self._grow is not None:
                        growing = Growing(take_on, batcher.limit, self._scheduler.__len__)
                        background.start_soon(self._grow, growing)
                background.cancel_scope.cancel()
        if self._fatal is not None:
            raise self._fatal

    async def _refresh_display(self) -> None:
        while True:
            await anyio.sleep(self._display.interval_s)
            self._display.refresh()

    async def _work(self, slot: Slot, batcher: Batcher) -> None:
        try:
            while (spec := await self._next(slot)) is not None:
                try:
                    await self._measure(slot, spec, batcher)
                except _Setback as setback:
                    self._scheduler.give_back(slot.index, spec)
                    if not await self._goes_on_after(setback, slot):
                        break
                else:
                    slot.setbacks = 0
                    await self._recycle(slot)
                self._tell_news()
        except RolloutError as exc:
            self._fatal = self._fatal or exc
            self.stop()
        self._counters.workers[slot.index] = WorkerState.IDLE

    async def _goes_on_after(self, setback: _Setback, slot: Slot) -> bool:
        """Whether the slot is to try again, after a pause. What it had to do is given to others, if there are any."""
        self._counters.workers[slot.index] = WorkerState.IDLE
        self._tell_news()
        slot.setbacks += 1
        others = len(self._equipped)
        if others and slot.setbacks > SETBACKS_WITH_OTHERS:
            self.warnings(f"workers are fewer than asked for, and the run goes on with {others}: {setback}")
            return False
        if slot.setbacks > SETBACKS_ALONE:
            raise UsageError(f"{setback}; what was recorded is kept: make room, then go on with --resume")
        await anyio.sleep(SETBACK_PAUSE_S)
        return True

    async def _recycle(self, slot: Slot) -> None:
        told = await slot.episode_over()
        if told is not None and not self._told_growth:
            self._told_growth = True
            self.warnings(f"{told}: does its simulator leak memory?")

    def _tell_news(self) -> None:
        self._news.set()
        self._news = anyio.Event()

    async def _next(self, slot: Slot) -> EpisodeSpec | None:
        while (spec := self._scheduler.next(slot.index, slot.holds)) is None and len(self._scheduler):
            self._counters.workers[slot.index] = WorkerState.IDLE
            await self._news.wait()
        return spec

    async def _measure(self, slot: Slot, spec: EpisodeSpec, batcher: Batcher) -> None:
        """One episode to its record, with as many attempts as its workers' deaths make necessary and retries allow.

        Raises `_Setback` where the slot cannot have a worker, and the episode is not to blame.
        """
        key = spec.task_key
        progress = self._counters.tasks[key]
        progress.active += 1
        try:
            number = 1
            while not await self._tried(slot, spec, number, batcher):
                self._counters.retries += 1
                number += 1
        finally:
            progress.active -= 1
            self._equipped.discard(slot.index)

    async def _tried(self, slot: Slot, spec: EpisodeSpec, number: int, batcher: Batcher) -> bool:
        """One attempt. False where another one may do better."""
        key = spec.task_key
        try:
            measured = await self._attempt(slot, spec, number, batcher)
        except SimulatorError as exc:
            await slot.discard()  # its state is anybody's guess
            failure = EpisodeFailure(type=exc.type_name, message=exc.message, traceback=exc.traceback)
            if exc.building and self._builds.can_be_built(key) and self._equipped - {slot.index}:
                # Others have it built: memory or GL contexts are used up, most likely.
                raise _Setback(f"{spec.task} cannot be built once more: {exc}") from exc
            if exc.building:
                self._builds.raised(key, why(failure))
        except (WorkerDied, ProtocolError) as exc:
            built = slot.holds == key
            await slot.discard()  # before its death is told: what it printed last is known then
            if isinstance(exc, WorkerDied) and exc.unmade:
                raise _Setback(str(exc)) from exc
            failure = death(exc)
            if number <= self._settings.retries and not self._builds.hopeless(key):
                self._tell_of_retry(spec, exc)
                return False
            if not built:
                self._builds.exhausted(key, failure.type)
        else:
            self._succeeded(key, measured)
            return True
        self._finish(failed(spec, failure, attempts=number), None)
        self._give_up(self._builds.hopeless(key), failure)
        return True

    async def _attempt(self, slot: Slot, spec: EpisodeSpec, number: int, batcher: Batcher) -> Measured:
        settings, states = self._settings, self._counters.workers
        states[slot.index] = WorkerState.STARTING
        family = spec.suite.partition(":")[0]
        began = time.perf_counter()
        try:
            worker = await slot.ready(family, settings.options[family], spec.task_key)
        finally:
            self._counters.work.start += time.perf_counter() - began
        self._equipped.add(slot.index)
        self._counters.pids[slot.index] = os.getpid() if worker.pid is None else worker.pid
        attempt = Attempt(
            spec=spec,
            suite=self._suites[spec.task_key],
            video=settings.video(spec),
            number=number,
            execution=settings.execution,
            warn=self.warnings,
            builds=self._builds,
        )
        return await run_episode(attempt, worker, self._policy, batcher, self._counters)

    def _succeeded(self, key: TaskKey, measured: Measured) -> None:
        result, spent = measured.result, measured.result.time_s
        reset_s = spent.reset if result.built else None
        seconds = spent.sim + spent.render + spent.wait + (0.0 if result.built else spent.reset)
        self._scheduler.measured(key, seconds, reset_s)
        if result.success_at_reset:
            self.warnings(
                f"{result.task}: the goal already holds when an episode begins, so doing nothing may succeed "
                "(success_at_reset in the records)"
            )
        if result.nonfinite_reward:
            self.warnings(
                f"{result.task}: a reward is not finite, so its episode has no return "
                "(nonfinite_reward in the records)"
            )
        self._finish(result, measured.actions)

    def _tell_of_retry(self, spec: EpisodeSpec, exc: RolloutError) -> None:
        kind = type(exc).__name__
        self._retries_told[kind] += 1
        told = self._retries_told[kind]
        if told <= MOST_ALIKE:
            tail = " (more of these are only counted)" if told == MOST_ALIKE else ""
            self._display.note(f"{spec.task} episode {spec.episode}: {exc}; trying again{tail}")

    def _give_up(self, keys: Collection[TaskKey], failure: EpisodeFailure) -> None:
        """Record what is left of tasks as errors: every episode would meet the same, so it is said once."""
        for key in keys:
            reason = why(failure)
            if reason not in self._told:
                self._told.add(reason)
                self.warnings(f"{self._counters.tasks[key].task} cannot be built: {reason}")
            # The first record has the traceback.
            brief = EpisodeFailure(type=failure.type, message=failure.message)
            for spec in self._scheduler.drop(key):
                self._finish(failed(spec, brief, attempts=0), None)

    def _finish(self, result: EpisodeResult, actions: Value | None) -> None:
        self._record_result(result, actions)
        count(self._counters, result)
        self._display.episode(result)


def count(counters: Counters, result: EpisodeResult) -> None:
    """Add a record to the counters that displays poll."""
    task = counters.tasks[result.task_key]
    counters.done += 1
    task.done += 1
    task.successes += result.outcome is Outcome.SUCCESS
    task.failures += result.outcome is Outcome.FAILURE
    task.errors += result.outcome is Outcome.ERROR
