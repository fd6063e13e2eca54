"""A run's result as one flat JSON object of numbers, for dashboards that know no more than names and values.

The names at the top are those that LeRobot's own continuous integration takes out of `eval_info.json`
(huggingface/lerobot, scripts/ci/parse_eval_metrics.py): `pc_success`, `n_episodes`, `avg_sum_reward`, `eval_s`.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TypeAlias

import msgspec
from msgspec import Struct

from rollout.errors import ResultsError, UsageError
from rollout.results.efficiency import Bound, Efficiency, Shares
from rollout.results.export import eval_info
from rollout.results.files import pretty_json, reporting, write_atomically
from rollout.results.journal import EPISODES, holds_journal, read_journal
from rollout.results.summary import SUMMARY, Stats, TaskStats, Timing, summarize
from rollout.types import EpisodeResult

__all__ = ["METRICS", "Metrics", "flat_metrics", "read_metrics", "write_metrics"]

METRICS = "metrics.json"

Metrics: TypeAlias = dict[str, float | int | None]
"""By name. None: there was nothing to average, or the run's end, which times it, is still to come."""


class _Written(Struct, frozen=True):
    """What of `summary.json` the records do not tell."""

    overall: _Counted
    timing: Timing | None
    bound: Bound | None = None
    eta: float | None = None
    shares: Shares | None = None


class _Counted(Struct, frozen=True):
    n_episodes: int


def read_metrics(run: Path) -> Metrics:
    """The metrics of the results directory `run`, whether or not its run has come to its end.

    Raises `UsageError` where it holds no run, and `ResultsError` where its files are damaged.
    """
    if not run.is_dir() or not holds_journal(run):
        raise UsageError(f"{run} is not a results directory: there is no {EPISODES} in it")
    header, results = read_journal(run)
    written = _written(run / SUMMARY, len(results))
    if written is None:
        return flat_metrics(results, header.planned, None)
    efficiency = Efficiency(bound=written.bound, eta=written.eta, shares=written.shares)
    return flat_metrics(results, header.planned, written.timing, efficiency)


def flat_metrics(
    results: Sequence[EpisodeResult],
    planned: int,
    timing: Timing | None,
    efficiency: Efficiency = Efficiency(),  # noqa: B008 (it is frozen)
) -> Metrics:
    """Express `results` of a plan of `planned` episodes as numbers: of all, of each suite and of each task."""
    summary = summarize(results, planned)
    metrics = _of(summary.overall) | _of_the_run(results, planned, timing) | _of_its_speed(efficiency)
    for suite, stats in summary.suites.items():
        metrics |= _named(f"suites/{suite}", stats)
    for name, task in summary.tasks.items():
        metrics |= _named(f"tasks/{_path(name, task)}", task)
    return metrics


def write_metrics(file: Path, metrics: Mapping[str, float | int | None]) -> None:
    """Write `metrics` to `file` as strict JSON, atomically where it is a file. Raises `ResultsError`."""
    with reporting("write", file):
        special = os.path.lexists(file) and not stat.S_ISREG(file.lstat().st_mode)
        if special:  # a pipe, /dev/stdout, a link: to be written to, not replaced
            file.write_bytes(pretty_json(metrics))
            return
    write_atomically(file, pretty_json(metrics))


def _of(stats: Stats) -> Metrics:
    low, high = stats.ci95 or (None, None)
    return {
        "pc_success": _percent(stats.success_rate),
        "pc_success_low": _percent(low),
        "pc_success_high": _percent(high),
        "n_episodes": stats.n_episodes - stats.n_error,  # as in eval_info.json: LeRobot has no errors
        "n_success": stats.n_success,
        "n_failure": stats.n_failure,
        "n_unknown": stats.n_unknown,
        "n_error": stats.n_error,
        "avg_sum_reward": stats.mean_return,
        "avg_steps": stats.mean_steps,
    }


def _of_the_run(results: Sequence[EpisodeResult], planned: int, timing: Timing | None) -> Metrics:
    lerobot = eval_info(results, timing).overall
    return {
        "avg_max_reward": lerobot.avg_max_reward,
        "n_planned": planned,
        "n_missing": max(planned - len(results), 0),
        "eval_s": lerobot.eval_s,
        "eval_ep_s": lerobot.eval_ep_s,
        "steps_per_s": None if timing is None else timing.steps_per_s,
    }


def _of_its_speed(efficiency: Efficiency) -> Metrics:
    bound, shares = efficiency.bound, efficiency.shares
    return {
        "eta": efficiency.eta,
        "bound_s": None if bound is None else bound.seconds,
        **{
            f"share_{cause}": None if shares is None else getattr(shares, cause)
            for cause in Shares.__struct_fields__
        },
    }


def _named(path: str, stats: Stats) -> Metrics:
    return {f"{path}/{name}": value for name, value in _of(stats).items()}


def _path(name: str, task: TaskStats) -> str:
    """Suite and task, whichever other suites there are: a dashboard's names must not depend on them."""
    path = f"{task.suite}/{task.task}"
    return name if name.startswith(path) else path  # it is longer where a suite has two tasks of one name


def _percent(rate: float | None) -> float | None:
    return None if rate is None else 100 * rate


def _written(file: Path, n_episodes: int) -> _Written | None:
    """What the run's end told, unless `file` is missing or older than the records: a resumed run is under way then."""
    try:
        with reporting("read", file):
            written = msgspec.json.decode(file.read_bytes(), type=_Written)
    except ResultsError as exc:
        if isinstance(exc.__cause__, FileNotFoundError):
            return None
        raise
    except (msgspec.MsgspecError, UnicodeDecodeError) as exc:
        raise ResultsError(f"{file}: not a run's summary: {exc}") from exc
    return written if written.overall.n_episodes == n_episodes else None
