"""More workers for a run with `--workers auto` while it runs, where its own measurements say that they pay.

No result depends on it: what an episode does is a function of its spec (docs/determinism.md).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from statistics import median
from typing import Final

import anyio

from rollout.display.base import Counters, WorkerState
from rollout.engine.growing import Growing
from rollout.engine.slots import Slot
from rollout.policies.base import PolicySpec
from rollout.resources import available_memory, cpu_time, peak_memory, usable_cores, workers_that_fit
from rollout.tune.curve import Curve
from rollout.tune.growth import Advice, Growth, Look, Stretch

__all__ = ["Grower"]

INTERVAL_S: Final = 1.0
MOST_WORKERS: Final = 64  # or four times the cores, where that is more
MAKING: Final = (WorkerState.STARTING, WorkerState.BUILDING)


class Grower:
    """Looks at a run's counters every second, and takes workers on."""

    def __init__(
        self,
        counters: Counters,
        spec: PolicySpec,
        slots: Callable[[int], list[Slot]],
        *,
        build_s: float,
        sets_batch: bool,
        note: Callable[[str], None],
    ) -> None:
        """`slots(n)` are the engine's first n; `build_s` is expected of a simulator until one was built."""
        self._counters, self._slots, self._build_s = counters, slots, build_s
        self._sets_batch, self._note = sets_batch, note
        self._cores = usable_cores()
        self._growth = Growth(self._cores, spec.calls, spec.max_batch)
        self._pids: tuple[int, ...] = ()

    async def __call__(self, run: Growing) -> None:
        """Until cancelled."""
        while True:
            await anyio.sleep(INTERVAL_S)
            advice = self._advice(run.waiting())
            if advice is None:
                continue
            before = len(self._counters.workers)
            if self._sets_batch:
                run.limit(advice.max_batch)
            for slot in self._slots(advice.workers)[before:]:
                run.take_on(slot)
            self._note(
                f"{advice.workers} workers in place of {before}: cores, memory and policy have room for them"
            )

    def _advice(self, waiting: int) -> Advice | None:
        """None where nothing is to be changed; `waiting` episodes have no worker yet."""
        counters, pids = self._counters, self._worker_pids()
        if pids != self._pids or any(state in MAKING for state in counters.workers):
            self._pids = pids
            self._growth.interrupted()
            return None
        return self._growth.advice(self._look(pids), self._curve(), self._ahead(pids, waiting))

    def _worker_pids(self) -> tuple[int, ...]:
        slots = self._slots(len(self._counters.workers))
        return tuple(slot.worker.pid for slot in slots if slot.worker is not None and slot.worker.pid)

    def _look(self, pids: Sequence[int]) -> Look:
        counters = self._counters
        return Look(
            at_s=time.monotonic(),
            decisions=counters.decisions,
            busy_s=counters.sim_busy_s,
            cpu_s=sum(map(cpu_time, pids)) + time.process_time() - counters.policy_cpu_s,
            policy_s=counters.policy_busy_s,
            policy_cpu_s=counters.policy_cpu_s,
        )

    def _curve(self) -> Curve | None:
        taken = self._counters.latencies.seconds
        return Curve.of({size: median(seconds) for size, seconds in taken.items()}) if taken else None

    def _ahead(self, pids: Sequence[int], waiting: int) -> Stretch:
        counters, workers = self._counters, len(self._counters.workers)
        work = counters.work
        each = max(map(peak_memory, pids), default=0)
        fitting = workers_that_fit(available_memory(), each / 1e9) if each else 0
        begun = counters.done - counters.resumed + sum(task.active for task in counters.tasks.values()) / 2
        return Stretch(
            workers=workers,
            most=min(workers + fitting, workers + waiting, max(MOST_WORKERS, 4 * self._cores)),
            decisions=waiting * counters.decisions / max(1.0, begun),
            build_s=work.build / work.built if work.built else self._build_s,
        )
