"""One evaluation, from its checks to its report: plan, journal, run, summary."""

from __future__ import annotations

import os
import platform
from collections.abc import Callable, Mapping
from contextlib import nullcontext, suppress
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import msgspec

from rollout.config import EvalConfig
from rollout.display.base import Counters, Display, RunPlan, TaskCounters, WorkerState
from rollout.engine.engine import Run, RunSettings, count
from rollout.engine.execution import advice, execution
from rollout.engine.scheduler import Costs
from rollout.engine.slots import Slot
from rollout.envs.base import Simulator
from rollout.errors import ResultsError, UsageError
from rollout.growing import Grower
from rollout.plan import plan_episodes, shard, video_request
from rollout.policies.base import Policy, PolicySpec
from rollout.rendering import Backend, require_rendering
from rollout.resources import trim_memory
from rollout.results.export import write_eval_info
from rollout.results.header import Header
from rollout.results.journal import Journal, holds_journal
from rollout.results.packed import Records
from rollout.results.report import Report
from rollout.results.summary import summarize, write_summary
from rollout.sim.video import require_encoder, video_path
from rollout.timing import Stopwatch, Taken
from rollout.tune.recommend import AUTO_MAX_BATCH
from rollout.types import EpisodeResult, EpisodeSpec, ProtocolUsed, SuiteInfo, VideoRequest
from rollout.values import Value

__all__ = ["Evaluation", "renders"]

PACKAGES = ("rollout-engine", "torch", "gymnasium", "numpy", "mujoco")


class Evaluation:
    """`check`, `plan`, `open`, `run`, in this order."""

    def __init__(
        self,
        config: EvalConfig,
        policy: Policy,
        policy_name: str,
        backend: Backend,
        adapters: Mapping[str, type[Simulator]],
        protocol: ProtocolUsed,
        display: Display,
    ) -> None:
        self._config, self._policy, self._policy_name = config, policy, policy_name
        self._backend, self._adapters, self._protocol = backend, adapters, protocol
        self._display = display
        self._counters = Counters()
        self._journal: Journal | None = None
        self._run: Run | None = None
        self._interrupted = False
        self._stopwatch: Stopwatch | None = None

    @property
    def n_episodes(self) -> int:
        """How many episodes this run's share of the plan has."""
        return len(self._specs)

    def check(self) -> None:
        """What can be known before any worker starts. Raises `UsageError`."""
        config = self._config
        if config.out is not None and not config.resume and holds_journal(Path(config.out)):
            raise UsageError(
                f"{config.out} already holds a run: use --resume to go on with it, or another --out"
            )
        if config.video != "none":
            require_encoder()
        if self._renders():
            require_rendering(self._backend)

    def plan(self, suites: Mapping[str, SuiteInfo]) -> None:
        """Fix what will run. Raises `UsageError`."""
        self._suites = suites
        self._specs = shard(plan_episodes(suites.values(), self._config), self._config.shard)
        self._records = Records(self._specs)

    def open(self, slots: list[Slot], more: Callable[[int], list[Slot]]) -> None:
        """Open the results directory and take over what a resumed run finds there. Raises `UsageError`.

        `more(n)` are the first n slots, of which `slots` are the first: for `--workers auto`.
        """
        self._slots, self._more = slots, more
        for spec in self._specs:
            self._counters.tasks.setdefault(spec.task_key, self._task_counters(spec)).planned += 1
        self._counters.planned = len(self._specs)
        self._counters.workers = [WorkerState.IDLE] * len(slots)
        if self._config.out is None:
            return
        try:
            opener = Journal.resume if self._config.resume else Journal.create
            self._journal = opener(Path(self._config.out), self._header())
        except ResultsError as exc:
            raise UsageError(str(exc)) from exc
        for result in self._journal.recorded:
            if result.key in self._records.places:
                self._records.add(result)
                count(self._counters, result)
        self._counters.resumed = self._counters.done

    async def run(self, options: Mapping[str, Mapping[str, str]]) -> Report:
        """Measure what is not on record yet. The results are written whatever ends the run."""
        with self._journal or nullcontext():  # its lock is for whoever resumes, whatever is raised here
            self._stopwatch = Stopwatch(self._counters, self._policy)
            try:
                await self._measure(options)
            except BaseException:
                # A full disk may have ended the run: the first error is the one to tell.
                with suppress(ResultsError):
                    self._finish(self._stopwatch.taken())
                raise
            return self._finish(self._stopwatch.taken())

    async def _measure(self, options: Mapping[str, Mapping[str, str]]) -> None:
        todo = [spec for spec in self._specs if not self._records.has(spec.key)]
        self._counters.most_steps = sum(spec.horizon for spec in todo)
        display = self._display
        try:
            display.start(self._run_plan(), self._counters)
            notes = self._journal.notes if self._journal else ()
            for note in (*notes, *advice(self._config, self._policy.spec)):
                display.note(note)
            self._run = Run(
                todo,
                self._policy,
                self._settings(options),
                self._counters,
                self._record,
                display,
                self._grower(),
            )
            await self._run.execute(self._slots)
        finally:
            display.finish()

    def interrupt(self) -> bool:
        """Stop; `run` returns what was measured. False where it has not begun."""
        if self._run is None:
            return False
        self._interrupted = True
        self._run.stop()
        return True

    def _record(self, result: EpisodeResult, actions: Value | None) -> None:
        if self._journal is not None:
            if result.video is not None:
                relative = os.path.relpath(result.video, self._journal.out.absolute())
                result = msgspec.structs.replace(result, video=relative)
            self._journal.append(result, actions)
        self._records.add(result)

    def _finish(self, taken: Taken) -> Report:
        episodes = self._records
        instructions = {key: task.instruction for key, task in self._counters.tasks.items()}
        warnings = () if self._run is None else self._run.warnings.texts
        summary = summarize(
            episodes,
            len(self._specs),
            instructions,
            taken.timing,
            self._protocol,
            warnings,
            efficiency=taken.efficiency,
        )
        out = None
        if self._journal is not None:
            out = self._journal.out
            if summary.complete:
                self._journal.seal(self._records.places)
            for torso in (out / "videos").rglob("*.partial.mp4"):  # of workers that were killed while filming
                torso.unlink(missing_ok=True)
            write_summary(out, summary)
            write_eval_info(out, episodes, taken.timing)
            trim_memory()  # of what the files took: this process may evaluate again and again
        return Report(summary=summary, episodes=episodes, out=out, interrupted=self._interrupted)

    def _settings(self, options: Mapping[str, Mapping[str, str]]) -> RunSettings:
        config = self._config
        return RunSettings(
            suites=self._suites,
            options=options,
            costs={
                family: Costs(adapter.build_s, adapter.step_s) for family, adapter in self._adapters.items()
            },
            execution=execution(config, self._policy.spec),
            max_batch=self._max_batch(),
            max_wait_s=config.max_wait_ms / 1e3,
            retries=config.retries,
            inline=config.workers == 0,
            video=self._video,
        )

    def _max_batch(self) -> int:
        wanted = AUTO_MAX_BATCH if self._config.max_batch == "auto" else self._config.max_batch
        return min(wanted, self._policy.spec.max_batch or wanted)

    def _grower(self) -> Grower | None:
        if self._config.workers != "auto":
            return None
        return Grower(
            self._counters,
            self._policy.spec,
            self._more,
            build_s=max(adapter.build_s for adapter in self._adapters.values()),
            sets_batch=self._config.max_batch == "auto",
            note=self._display.note,
        )

    def _video(self, spec: EpisodeSpec) -> VideoRequest | None:
        if self._config.out is None or self._config.video == "none":
            return None
        # Absolute: a simulator may change its process's working directory.
        return video_request(spec, self._config, video_path(Path(self._config.out).absolute(), spec))

    def _renders(self) -> bool:
        return renders(self._config, self._policy.spec, self._adapters)

    def _task_counters(self, spec: EpisodeSpec) -> TaskCounters:
        instruction = self._suites[spec.suite].task(spec.task_id).instruction
        return TaskCounters(suite=spec.suite, task=spec.task, instruction=instruction, planned=0)

    def _run_plan(self) -> RunPlan:
        config = self._config
        return RunPlan(
            targets=config.targets,
            policy=self._policy_name,
            specs=self._specs,
            workers=len(self._slots),
            out=config.out,
        )

    def _header(self) -> Header:
        versions = {"python": platform.python_version()} | _versions()
        for suite in self._suites.values():
            versions |= suite.versions
        policy: dict[str, str] = getattr(self._policy, "versions", {})
        # In the config, as a run must not go on with other weights; among the versions, one would only be told.
        checkpoint = policy.get("checkpoint")
        versions |= {name: version for name, version in policy.items() if name != "checkpoint"}
        config = self._config
        return Header(
            config=dict(config.identity(self._policy_name, checkpoint)),
            fingerprint=config.fingerprint(self._policy_name, checkpoint),
            policy=self._policy_name,
            versions=versions,
            gl=self._backend.name if self._renders() else None,
            protocol=self._protocol,
            planned=len(self._specs),
            shard=config.shard,
        )


def renders(config: EvalConfig, spec: PolicySpec, adapters: Mapping[str, type[Simulator]]) -> bool:
    """Whether any worker will need MuJoCo's rendering libraries."""
    needs = {adapter.needs_gl for adapter in adapters.values()}
    keys = spec.observation_keys
    cameras = keys is None or any(key.startswith("observation.image") for key in keys)
    return "always" in needs or ("cameras" in needs and (cameras or config.video != "none"))


def _versions() -> dict[str, str]:
    found = {}
    for name in PACKAGES:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            continue
    return found
