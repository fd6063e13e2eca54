"""The library: `evaluate`, `run`, and an `Engine` that keeps its simulators warm between evaluations."""

from __future__ import annotations

import gc
import sys
from collections.abc import Mapping, Sequence
from contextlib import AsyncExitStack
from typing import Any, Self

import anyio
from anyio.lowlevel import current_token

from rollout.config import DisplayName, EvalConfig
from rollout.display.base import Display
from rollout.display.select import create_display
from rollout.engine.slots import Slot, watch_deadlines
from rollout.envs.gymnasium_handover import Target, hand_over, named
from rollout.envs.registry import suite_names, usable_simulator
from rollout.errors import (
    ProtocolError,
    RolloutError,
    SimulatorError,
    UsageError,
    WorkerDied,
    WorkerTimeout,
)
from rollout.evaluation import Evaluation, renders
from rollout.opening import check_spec, opened_policy
from rollout.policies.base import Policy, PolicySpec
from rollout.policies.load import policy_name
from rollout.protocols import protocol_used, simulator_options
from rollout.rendering import Backend, choose_backend, worker_environment
from rollout.resources import auto_workers, available_memory, usable_cores
from rollout.results.report import Report
from rollout.sim.inline import InlineWorker
from rollout.sim.limits import TimeLimits
from rollout.sim.processes import Forkserver
from rollout.sim.worker import WorkerProcess
from rollout.types import SuiteInfo

__all__ = ["Engine", "evaluate", "run"]


async def evaluate(
    policy: Any,
    targets: Target | Sequence[Target],
    *,
    display: Display | DisplayName = "none",
    **settings: Any,
) -> Report:
    """Evaluate `policy` on `targets` (e.g. `"libero:spatial"`); `settings` are the fields of `EvalConfig`.

    A target may also be a class or a function that makes a Gymnasium environment.

    `policy` is a spec string as on the command line, a `torch.nn.Module`, or any object with `infer`. `display` is
    "auto", "live", "plain", "json", "none" or an object of your own. Nothing is written unless `out` names a
    directory. Raises `UsageError` before anything starts where a setting is wrong, and `PolicyError` where the policy
    fails; simulators that fail become episodes with an error.
    """
    async with Engine(targets, **settings) as engine:
        return await engine.evaluate(policy, display=display)


def run(
    policy: Any,
    targets: Target | Sequence[Target],
    *,
    display: Display | DisplayName = "none",
    **settings: Any,
) -> Report:
    """`evaluate` without `await`, on an event loop of its own (uvloop where it is installed)."""
    try:
        current_token()
    except anyio.NoEventLoopError:
        pass
    else:
        raise UsageError(
            "rollout.run() cannot be called inside a running event loop (a notebook has one): "
            "use `await rollout.evaluate(...)`"
        )

    async def main() -> Report:
        return await evaluate(policy, targets, display=display, **settings)

    try:
        return anyio.run(main, backend_options=loop_options())
    finally:
        # The event loop and its buffers, 256 KB, are in cycles with all that used it: a script that evaluates again and
        # again would grow until Python's collector comes by.
        gc.collect()


def loop_options() -> dict[str, Any]:
    """anyio's options for the fastest event loop that is installed."""
    import importlib.util

    return {"use_uvloop": importlib.util.find_spec("uvloop") is not None}


FIXED = (
    "targets",
    "options",
    "protocol",
    "workers",
    "render",
    "recycle_after",
    "start_timeout_s",
    "reset_timeout_s",
    "step_timeout_s",
)
"""What workers are made with."""


class Engine:
    """Simulator workers that outlive an evaluation: `async with Engine(config) as engine`.

    Workers start when an evaluation needs them and keep what they have built, so that evaluating inside a training
    loop pays for start-up once. One evaluation at a time.
    """

    def __init__(self, config: EvalConfig | Target | Sequence[Target], **settings: Any) -> None:
        """`config`, or targets and `EvalConfig`'s fields. Raises `UsageError` where they cannot be run."""
        targets, factories = named(() if isinstance(config, EvalConfig) else config)
        if isinstance(config, EvalConfig):
            self.config = config.replaced(**settings)
        else:
            self.config = EvalConfig.create(targets=targets, **settings)
        self._suite_names = suite_names(self.config.targets)
        self._registrations = hand_over(self._suite_names, factories)
        self._adapters = {family: usable_simulator(family) for family, _ in self._suite_names}
        self._options = simulator_options(self.config, self._adapters)
        self._slots: list[Slot] = []
        self._suites: dict[str, SuiteInfo] = {}
        self._evaluation: Evaluation | None = None
        self._busy = False  # from before a policy is loaded until its evaluation is over

    async def __aenter__(self) -> Self:
        async with AsyncExitStack() as stack:
            self._forkserver = None
            if self.config.workers != 0:
                self._forkserver = await stack.enter_async_context(Forkserver(families=list(self._adapters)))
            stack.push_async_callback(self._discard_workers)
            # Asks a process of its own what this machine renders with, while the forkserver is importing.
            self._backend = await anyio.to_thread.run_sync(choose_backend, self.config.render)
            self._resources = stack.pop_all()
        return self

    async def __aexit__(self, *exception: object) -> None:
        with anyio.CancelScope(shield=True):
            await self._resources.aclose()

    async def _discard_workers(self) -> None:
        async with anyio.create_task_group() as closing:
            for slot in self._slots:
                closing.start_soon(slot.discard)

    @property
    def options(self) -> Mapping[str, Mapping[str, str]]:
        """What the simulators of each family are made with: the protocol's values, and `--set`."""
        return self._options

    @property
    def backend(self) -> Backend:
        """What workers render with. Known inside `async with`."""
        return self._backend

    def renders(self, spec: PolicySpec) -> bool:
        """Whether a worker needs MuJoCo's rendering libraries for a policy with this `spec`."""
        return renders(self.config, spec, self._adapters)

    @property
    def worker_pids(self) -> tuple[int, ...]:
        """The processes that are alive now, by slot."""
        return tuple(
            slot.worker.pid
            for slot in self._slots
            if slot.worker is not None and slot.worker.pid and not slot.worker.lost
        )

    async def evaluate(
        self, policy: Any, *, display: Display | DisplayName | None = None, **settings: Any
    ) -> Report:
        """Run the plan with `policy`; see `rollout.evaluate`. `display` None: the config's.

        `settings` override the engine's for this evaluation: `episodes`, `seed`, `tasks`, `out`, … but not what the
        workers were made with. Raises `UsageError` for those.
        """
        if self._busy:
            raise UsageError(
                "this engine is evaluating already; open another one to evaluate at the same time"
            )
        config = self._for_this_evaluation(settings)
        self._busy = True
        try:
            async with opened_policy(policy, config) as adapted:
                return await self._evaluate(adapted, policy_name(policy), config, display)
        finally:
            self._busy = False
            self._evaluation = None

    async def _evaluate(
        self, policy: Policy, name: str, config: EvalConfig, display: Display | DisplayName | None
    ) -> Report:
        self.check_policy(policy.spec, name)
        shown = config.display if display is None else display
        self._evaluation = evaluation = Evaluation(
            config,
            policy,
            name,
            self._backend,
            self._adapters,
            protocol_used(config, self._options),
            create_display(shown, sys.stdout) if isinstance(shown, str) else shown,
        )
        evaluation.check()
        evaluation.plan(await self.describe())
        evaluation.open(self.slots(evaluation.n_episodes), self.first_slots)
        return await evaluation.run(self._options)

    def interrupt(self) -> bool:
        """End the evaluation that is running: it returns a report of what it measured. False where none has begun."""
        return self._evaluation is not None and self._evaluation.interrupt()

    async def describe(self) -> Mapping[str, SuiteInfo]:
        """The suites of this engine's targets, with their tasks. Raises `UsageError` where they cannot be listed."""
        failure = None
        async with anyio.create_task_group() as background:
            background.start_soon(watch_deadlines, self._slots)  # an import may hang
            try:
                for family, name in self._suite_names:
                    await self._describe(family, name)
            except RolloutError as exc:  # caught here, as a task group would wrap it
                failure = exc
            background.cancel_scope.cancel()
        if failure is not None:
            raise failure
        return {f"{family}:{name}": self._suites[f"{family}:{name}"] for family, name in self._suite_names}

    async def _describe(self, family: str, name: str) -> None:
        suite = f"{family}:{name}"
        slot, tries = self._slot(0), 0
        while suite not in self._suites:
            tries += 1
            try:
                worker = await slot.ready(family, self._options[family])
                self._suites[suite] = await worker.describe(name)
            except SimulatorError as exc:
                raise UsageError(f"{suite}: its tasks could not be listed: {exc}") from exc
            except (WorkerDied, ProtocolError) as exc:
                await slot.discard()  # what it printed last is known then
                if tries <= self.config.retries and not isinstance(exc, WorkerTimeout):
                    continue
                printed = getattr(exc, "log_tail", "").strip().rpartition("\n")[2]
                said = f"; it printed last: {printed}" if printed else ""
                raise UsageError(f"{suite}: {exc} while listing its tasks{said}") from exc

    def _for_this_evaluation(self, settings: Mapping[str, Any]) -> EvalConfig:
        for name in settings:
            if name in FIXED:
                raise UsageError(f"{name} is fixed while an engine is open: open another one")
        return self.config.replaced(**settings)

    def check_policy(self, spec: PolicySpec, name: str) -> None:
        """Raise `UsageError` where a policy with this `spec` cannot be evaluated here."""
        check_spec(spec, name, self._adapters)

    def slots(self, most: int) -> list[Slot]:
        """The slots of an evaluation that has use for `most` workers: as many as the config says, `most` at most."""
        asked = self.config.workers
        wanted = self._auto_workers() if asked == "auto" else asked
        return self.first_slots(max(1, min(wanted, most)))

    def _auto_workers(self) -> int:
        each = max(adapter.worker_memory_gb for adapter in self._adapters.values())
        # What an evaluation before this one found it had use for is there already.
        return max(len(self._slots), auto_workers(usable_cores(), available_memory(), each))

    def first_slots(self, count: int) -> list[Slot]:
        """So many slots, whatever the config says: those that have workers already come first."""
        return [self._slot(index) for index in range(count)]

    def _slot(self, index: int) -> Slot:
        while len(self._slots) <= index:
            self._slots.append(Slot(len(self._slots), self._spawn, self.config.recycle_after))
        return self._slots[index]

    def _spawn(self, index: int) -> WorkerProcess | InlineWorker:
        config = self.config
        limits = TimeLimits(
            start=config.start_timeout_s, reset=config.reset_timeout_s, step=config.step_timeout_s
        )
        environ = worker_environment(self._backend, index)
        if self._forkserver is None:
            return InlineWorker(index, limits, environ, self._registrations)
        return WorkerProcess(index, self._forkserver, limits, environ, self._registrations)
