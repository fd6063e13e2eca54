"""One run of the sample, and everything of it that can be compared."""

from __future__ import annotations

import sys
from tempfile import TemporaryDirectory
from typing import Any

from msgspec import Struct, structs

from rollout.api import Engine
from rollout.config import DisplayName, EvalConfig
from rollout.display.base import Counters, RunPlan
from rollout.display.select import GuardedDisplay, create_display
from rollout.envs.registry import resolve
from rollout.errors import UsageError
from rollout.opening import opened_policy
from rollout.policies.load import policy_name
from rollout.results.journal import Actions, Key, read_actions
from rollout.results.report import Report
from rollout.types import EpisodeResult
from rollout.verify.differences import Lived
from rollout.verify.verdict import Setting
from rollout.verify.witness import Sights, Witness

__all__ = ["Sample", "measure"]


class Sample(Struct, frozen=True):
    """What one setting gave."""

    report: Report
    actions: dict[Key, Actions]
    sights: Sights
    setting: Setting

    def lived(self, result: EpisodeResult) -> Lived:
        """All that is known of a measured episode."""
        key = result.key
        return Lived(result=result, actions=self.actions[key].actions, seen=self.sights.get(key, ()))


async def measure(policy: Any, config: EvalConfig, display: DisplayName) -> Sample:
    """Run `config` with `policy`, in a directory that is gone afterwards; `config.workers` and `max_batch` are numbers.

    Raises what `Engine.evaluate` raises.
    """
    shown = _Titled(display, f"{policy_name(policy)}, {_batches(config)}")
    with TemporaryDirectory(prefix="rollout-verify-", ignore_cleanup_errors=True) as out:
        async with Engine(config) as engine, opened_policy(policy, config) as adapted:
            _check(adapted.spec.families, config, policy_name(policy))
            witness = Witness(adapted)
            report = await engine.evaluate(witness, display=shown, out=out)
        return Sample(report, read_actions(out), witness.sights, _setting(config, report))


class _Titled(GuardedDisplay):
    """A display that says which setting runs, and nothing of the directory that will be gone."""

    def __init__(self, name: DisplayName, title: str) -> None:
        super().__init__(create_display(name, sys.stdout))
        self._title = title

    def start(self, plan: RunPlan, counters: Counters) -> None:
        super().start(structs.replace(plan, policy=self._title, out=None), counters)


def _batches(config: EvalConfig) -> str:
    return "batches of 1" if config.max_batch == 1 else f"batches of up to {config.max_batch}"


def _check(acts_in: tuple[str, ...] | None, config: EvalConfig, name: str) -> None:
    """Before the engine does it, which would name the witness."""
    for family in dict.fromkeys(resolve(target)[0] for target in config.targets):
        if acts_in is not None and family not in acts_in:
            raise UsageError(f"policy {name!r} cannot act in {family}: it knows {', '.join(acts_in)}")


def _setting(config: EvalConfig, report: Report) -> Setting:
    timing = report.summary.timing
    assert timing is not None  # it has just run
    assert isinstance(config.workers, int)
    assert isinstance(config.max_batch, int)
    return Setting(
        workers=min(config.workers, len(report.episodes)),
        max_batch=config.max_batch,
        max_wait_ms=config.max_wait_ms,
        mean_batch=timing.mean_batch,
        wall_s=timing.wall_s,
    )
