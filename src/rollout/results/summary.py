"""The summary of a run: rates, intervals and means, overall, by suite and by task, and what it took."""

from __future__ import annotations

from array import array
from collections import Counter
from collections.abc import Iterable, Mapping
from pathlib import Path

import msgspec
from msgspec import Struct

from rollout.results.efficiency import Bound, Efficiency, Limit, Shares
from rollout.results.files import pretty_json, write_atomically
from rollout.results.stats import mean, wilson
from rollout.types import EpisodeResult, Outcome, ProtocolUsed

__all__ = [
    "SUMMARY",
    "BatchTiming",
    "PolicyTiming",
    "Stats",
    "Summary",
    "TaskStats",
    "Timing",
    "summarize",
    "write_summary",
]

SUMMARY = "summary.json"


class Stats(Struct, frozen=True, kw_only=True):
    """What a set of episodes amounts to. An error is in `n_episodes` and `n_error` and nowhere else."""

    n_episodes: int  # on record, whatever their outcome
    n_success: int
    n_failure: int
    n_error: int  # could not be measured
    n_unknown: int  # measured, but the environment has no success signal
    success_rate: float | None  # n_success / (n_success + n_failure), from 0 to 1; None where that is 0 / 0
    ci95: tuple[float, float] | None  # Wilson's 95 % interval [low, high] around success_rate
    mean_return: float | None  # undiscounted sum of rewards, over measured episodes where it is finite
    mean_steps: float | None  # simulator actions, settle steps excluded, over measured episodes


class TaskStats(Stats, frozen=True, kw_only=True):
    """One task's `Stats`."""

    suite: str  # e.g. "metaworld:mt10"
    task: str  # e.g. "reach-v3"
    task_id: int  # index within the suite
    instruction: str  # natural language; empty where there is none


class BatchTiming(Struct, frozen=True, kw_only=True):
    """The forwards of one batch size."""

    forwards: int
    median_s: float  # of the latest 512: a point of the policy's latency curve t(B)


class PolicyTiming(Struct, frozen=True, kw_only=True):
    """Where the policy's time went, in seconds. What is None the policy did not tell."""

    batches: dict[int, BatchTiming]  # by batch size
    batch_limit: int | None  # most decisions a batch that memory left room for, where it ran out
    idle_s: float  # nobody asked
    collate_s: float | None  # observations into batches, in the host's memory
    copy_s: float | None  # those to the device
    forward_s: float | None  # until the actions were back in the host's memory


class Timing(Struct, frozen=True, kw_only=True):
    """What the run took. Of this run alone: what a resumed run found on record cost it nothing."""

    wall_s: float  # seconds from the start to the last record
    episodes_per_s: float | None  # over wall_s; None where nothing ran
    steps_per_s: float | None  # simulator actions a second, over wall_s
    decisions: int  # requests to the policy
    steps: int  # simulator actions
    mean_batch: float | None  # requests in one forward pass of the policy, on average
    policy_busy: float  # share of wall_s that the policy spent inferring, from 0 to 1
    worker_utilisation: float  # share of the workers' time spent resetting, stepping, rendering, from 0 to 1
    bound_by: Limit  # what bound the run: `bound.by` of the summary, where that could be told
    policy: PolicyTiming | None = None  # None in files of older versions


class Summary(Struct, frozen=True, kw_only=True):
    """A run's result. All but what it took (`timing`, `bound`, `eta`, `shares`) and `warnings` follows from the records
    alone, whatever their order."""

    overall: Stats
    suites: dict[str, Stats]  # by suite
    tasks: dict[str, TaskStats]  # by task, or "suite/task" where suites share it; sorted by suite and task_id
    planned: int  # episodes in the plan
    complete: bool  # every planned episode is on record, as an error or not
    clipped_actions: int = 0  # executed actions that `--clip-actions` changed
    success_at_reset: int = 0  # episodes whose goal held before their first step
    warnings: tuple[str, ...] = ()  # what the user was told; as `timing`, of this run alone
    timing: Timing | None  # None where the records were summarized later; so are the three that follow
    bound: Bound | None = (
        None  # the least time that the work takes, and what binds; None: no episode ended here
    )
    eta: float | None = None  # that time over `timing.wall_s`: 1 is as fast as it goes; None where `bound` is
    shares: Shares | None = None  # where the workers' time went; None: none had an episode
    protocol: ProtocolUsed | None = None  # whose evaluation rules, value by value


def summarize(
    results: Iterable[EpisodeResult],
    planned: int,
    instructions: Mapping[tuple[str, int], str] | None = None,
    timing: Timing | None = None,
    protocol: ProtocolUsed | None = None,
    warnings: Iterable[str] = (),
    *,
    efficiency: Efficiency | None = None,
) -> Summary:
    """Summarize `results`, one record an episode in any order; `instructions` are by (suite, task_id)."""
    tallies: dict[tuple[str, int], _Tally] = {}
    names: dict[tuple[str, int], str] = {}
    for result in results:
        names.setdefault(result.task_key, result.task)
        tallies.setdefault(result.task_key, _Tally()).add(result)
    tasks = dict(sorted(tallies.items()))
    suites: dict[str, _Tally] = {}
    overall = _Tally()
    for (suite, _), tally in tasks.items():
        suites.setdefault(suite, _Tally()).include(tally)
        overall.include(tally)
    return Summary(
        overall=overall.stats(),
        suites={suite: tally.stats() for suite, tally in suites.items()},
        tasks=_task_stats(tasks, names, instructions or {}),
        planned=planned,
        complete=overall.outcomes.total() >= planned,
        clipped_actions=overall.clipped,
        success_at_reset=overall.success_at_reset,
        warnings=tuple(warnings),
        timing=timing,
        protocol=protocol,
        **msgspec.structs.asdict(efficiency or Efficiency()),
    )


def write_summary(out: Path, summary: Summary) -> None:
    """Write `summary.json` into directory `out`, atomically and as strict JSON. Raises `ResultsError`."""
    write_atomically(out / SUMMARY, pretty_json(summary))


class _Tally:
    """Episodes added up, one after the other: of each, no more than one number is kept."""

    def __init__(self) -> None:
        self.outcomes: Counter[Outcome] = Counter()
        self.returns = array("d")  # of the measured episodes whose return is finite
        self.steps = self.clipped = self.success_at_reset = 0

    def add(self, result: EpisodeResult) -> None:
        self.outcomes[result.outcome] += 1
        self.clipped += result.clipped
        self.success_at_reset += result.success_at_reset
        if result.outcome is not Outcome.ERROR:
            self.steps += result.steps
            if result.sum_reward is not None:
                self.returns.append(result.sum_reward)

    def include(self, other: _Tally) -> None:
        self.outcomes += other.outcomes
        self.returns += other.returns
        self.steps += other.steps
        self.clipped += other.clipped
        self.success_at_reset += other.success_at_reset

    def stats(self) -> Stats:
        outcomes, total = self.outcomes, self.outcomes.total()
        judged = outcomes[Outcome.SUCCESS] + outcomes[Outcome.FAILURE]
        measured = total - outcomes[Outcome.ERROR]
        return Stats(
            n_episodes=total,
            n_success=outcomes[Outcome.SUCCESS],
            n_failure=outcomes[Outcome.FAILURE],
            n_error=outcomes[Outcome.ERROR],
            n_unknown=outcomes[Outcome.UNKNOWN],
            success_rate=outcomes[Outcome.SUCCESS] / judged if judged else None,
            ci95=wilson(outcomes[Outcome.SUCCESS], judged),
            mean_return=mean(self.returns),
            mean_steps=self.steps / measured if measured else None,
        )


def _task_stats(
    tasks: Mapping[tuple[str, int], _Tally],
    tasks_names: Mapping[tuple[str, int], str],
    instructions: Mapping[tuple[str, int], str],
) -> dict[str, TaskStats]:
    names = _names({key: tasks_names[key] for key in tasks})
    return {
        names[key]: TaskStats(
            suite=key[0],
            task=tasks_names[key],
            task_id=key[1],
            instruction=instructions.get(key, ""),
            **msgspec.structs.asdict(tally.stats()),
        )
        for key, tally in tasks.items()
    }


def _names(tasks: Mapping[tuple[str, int], str]) -> dict[tuple[str, int], str]:
    """A name for each task: as short as it can be without two tasks sharing it."""
    alone = Counter(tasks.values())
    in_suite = Counter((suite, task) for (suite, _), task in tasks.items())
    names = {}
    for (suite, task_id), task in tasks.items():
        full = f"{suite}/{task}" if in_suite[suite, task] == 1 else f"{suite}/{task}/{task_id}"
        names[suite, task_id] = task if alone[task] == 1 else full
    return names
