"""`rollout verify`: is an evaluation's result the same, bit for bit, however it is executed?"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from rollout.config import DisplayName, EvalConfig
from rollout.envs.registry import load_simulator, resolve
from rollout.errors import UsageError
from rollout.policies.load import policy_name
from rollout.resources import auto_workers, available_memory, usable_cores
from rollout.types import EpisodeResult, Outcome
from rollout.verify.differences import Cause, Difference, difference
from rollout.verify.verdict import Setting, Unmeasured, Verdict, Which

if TYPE_CHECKING:
    from rollout.verify.sample import Sample

__all__ = ["Cause", "Difference", "Setting", "Unmeasured", "Verdict", "verify"]

EPISODES, MAX_BATCH, MAX_WAIT_MS = 2, 8, 50.0
WEAK_BATCH = 1.5  # a mean below this proves little about batches
REFUSED = ("out", "resume", "shard", "video")


async def verify(
    policy: Any, targets: str | Sequence[str], *, display: DisplayName = "none", **settings: Any
) -> Verdict:
    """Run a sample with one worker and batches of one, then with several of both, and compare every episode.

    `policy` as in `rollout.evaluate`: a spec string is loaded anew for each setting. `settings` are the fields of
    `EvalConfig`, with `workers` (auto: at least 2), `max_batch` (8) and `max_wait_ms` (50: so that batches form) those
    of the second setting, and 2 `episodes` per task. Nothing is kept on disk. Raises `UsageError` before anything
    starts where a setting is wrong, and `PolicyError` where the policy fails.
    """
    from rollout.verify.sample import measure  # here: the command line reads the options without an engine

    together = _together(targets, settings)
    alone = together.replaced(workers=1, max_batch=1, max_wait_ms=0.0)
    return _verdict(
        policy_name(policy),
        together,
        await measure(policy, alone, display),
        await measure(policy, together, display),
    )


def _together(targets: str | Sequence[str], settings: dict[str, Any]) -> EvalConfig:
    for name in REFUSED:
        if name in settings:
            raise UsageError(f"{name} does not go with verify, which keeps no results")
    values = {"episodes": EPISODES, "max_batch": MAX_BATCH, "max_wait_ms": MAX_WAIT_MS} | settings
    values["targets"] = (targets,) if isinstance(targets, str) else tuple(targets)
    config = EvalConfig.create(**values)
    if config.workers != "auto" and config.workers < 2:
        raise UsageError(
            f"--workers {config.workers}: verify compares with one worker, so it takes at least 2"
        )
    max_batch = MAX_BATCH if config.max_batch == "auto" else config.max_batch
    workers = _auto_workers(config) if config.workers == "auto" else config.workers
    return config.replaced(workers=workers, max_batch=max_batch)


def _auto_workers(config: EvalConfig) -> int:
    families = {resolve(target)[0] for target in config.targets}
    each = max(load_simulator(family).worker_memory_gb for family in families)
    return max(2, auto_workers(usable_cores(), available_memory(), each))


def _verdict(policy: str, config: EvalConfig, alone: Sample, together: Sample) -> Verdict:
    pairs = list(zip(alone.report.episodes, together.report.episodes, strict=True))
    unmeasured = tuple(_unmeasured(pairs))
    differences = tuple(
        found
        for one, other in pairs
        if Outcome.ERROR not in (one.outcome, other.outcome)
        and (found := difference(alone.lived(one), together.lived(other), config.dtype)) is not None
    )
    return Verdict(
        equal=not differences and not unmeasured,
        weak=(together.setting.mean_batch or 0.0) < WEAK_BATCH,
        policy=policy,
        targets=config.targets,
        tasks=len(alone.report.summary.tasks),
        episodes=len(pairs),
        alone=alone.setting,
        together=together.setting,
        deterministic=config.deterministic,
        differences=differences,
        unmeasured=unmeasured,
    )


def _unmeasured(pairs: Sequence[tuple[EpisodeResult, EpisodeResult]]) -> Iterator[Unmeasured]:
    settings: tuple[Which, Which] = ("alone", "together")
    for pair in pairs:
        for result, setting in zip(pair, settings, strict=True):
            if result.error is not None:
                yield Unmeasured(
                    suite=result.suite,
                    task=result.task,
                    task_id=result.task_id,
                    episode=result.episode,
                    setting=setting,
                    error=f"{result.error.type}: {result.error.message}",
                )
