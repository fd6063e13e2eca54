"""The run: one coroutine a worker slot, no barrier anywhere."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence

import anyio
from msgspec import Struct

from rollout.display.base import Counters, Display, WorkerState
from rollout.engine.batcher import Batcher
from rollout.engine.episode import Attempt, Measured, run_episode
from rollout.engine.execution import Execution
from rollout.engine.scheduler import Costs, Scheduler, TaskKey
from rollout.engine.session import failed
from rollout.engine.slots import Slot, watch_deadlines
from rollout.errors import RolloutError, SimulatorError, WorkerDied, WorkerTimeout
from rollout.policies.base import Policy
from rollout.types import EpisodeFailure, EpisodeResult, EpisodeSpec, Outcome, SuiteInfo, VideoRequest
from rollout.values import Value

__all__ = ["Record", "Run", "RunSettings"]

Record = Callable[[EpisodeResult, Value | None], None]


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
    ) -> None:
        self._scheduler = Scheduler(specs, settings.costs)
        self._news = anyio.Event()  # an episode ended: what was not worth a worker's while may be now
        self._policy, self._settings, self._counters = policy, settings, counters
        self._record_result, self._display = record, display
        self._suites = {spec.task_key: settings.suites[spec.suite].only(spec.task_id) for spec in specs}
        self._unbuildable: set[TaskKey] = set()
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
                await self._measure(slot, spec, batcher)
                self._news.set()
                self._news = anyio.Event()
        except RolloutError as exc:
            self._fatal = self._fatal or exc
            self.stop()
        self._counters.workers[slot.index] = WorkerState.IDLE

    async def _next(self, slot: Slot) -> EpisodeSpec | None:
        while (spec := self._scheduler.next(slot.index, slot.holds)) is None and len(self._scheduler):
            self._counters.workers[slot.index] = WorkerState.IDLE
            await self._news.wait()
        return spec

    async def _measure(self, slot: Slot, spec: EpisodeSpec, batcher: Batcher) -> None:
        """One episode to its record, with as many attempts as its workers' deaths make necessary and retries allow."""
        key = spec.task_key
        progress = self._counters.tasks[key]
        progress.active += 1
        try:
            for number in range(1, self._settings.retries + 2):
                try:
                    self._succeeded(key, await self._attempt(slot, spec, number, batcher))
                    return
                except SimulatorError as exc:
                    await slot.discard()  # its state is anybody's guess
                    self._simulator_failed(key, spec, number, exc)
                    return
                except WorkerDied as exc:
                    await slot.discard()
                    if number > self._settings.retries:
                        self._finish(failed(spec, _death(exc), attempts=number), None)
                        return
                    self._counters.retries += 1
                    self._display.note(f"{spec.task} episode {spec.episode}: {exc}; trying again")
        finally:
            progress.active -= 1

    async def _attempt(self, slot: Slot, spec: EpisodeSpec, number: int, batcher: Batcher) -> Measured:
        settings, states = self._settings, self._counters.workers
        states[slot.index] = WorkerState.STARTING
        family = spec.suite.partition(":")[0]
        worker = await slot.ready(family, settings.options[family])
        attempt = Attempt(
            spec=spec,
            suite=self._suites[spec.task_key],
            video=settings.video(spec),
            number=number,
            execution=settings.execution,
        )
        return await run_episode(attempt, worker, self._policy, batcher, self._counters)

    def _succeeded(self, key: TaskKey, measured: Measured) -> None:
        result, spent = measured.result, measured.result.time_s
        reset_s = spent.reset if result.built else None
        seconds = spent.sim + spent.render + spent.wait + (0.0 if result.built else spent.reset)
        self._scheduler.measured(key, seconds, reset_s)
        self._finish(result, measured.actions)

    def _simulator_failed(self, key: TaskKey, spec: EpisodeSpec, number: int, exc: SimulatorError) -> None:
        error = EpisodeFailure(type=exc.type_name, message=exc.message, traceback=exc.traceback)
        specs = [spec]
        if exc.building:  # every other episode of the task would meet the same: said once, recorded for each
            specs += self._scheduler.drop(key)
            if key not in self._unbuildable:
                self._display.note(f"{spec.suite} {spec.task} cannot be built: {exc}")
            self._unbuildable.add(key)
        for each in specs:
            self._finish(failed(each, error, attempts=number), None)

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


def _death(exc: WorkerDied) -> EpisodeFailure:
    kind = "WorkerTimeout" if isinstance(exc, WorkerTimeout) else "WorkerDied"
    tail = f"last lines that the worker printed:\n{exc.log_tail}" if exc.log_tail.strip() else ""
    return EpisodeFailure(type=kind, message=str(exc), traceback=tail)
