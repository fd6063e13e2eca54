"""A run's result in the schema of `lerobot-eval`, so that what reads its `eval_info.json` reads ours.

Schema: LeRobot 0.6.1, `src/lerobot/scripts/lerobot_eval.py`, `eval_policy_all`. Where LeRobot writes NaN,
which is not JSON, this writes null.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

import msgspec
from msgspec import Struct

from rollout.results.files import pretty_json, write_atomically
from rollout.results.stats import mean
from rollout.results.summary import Timing
from rollout.types import EpisodeResult, Outcome

__all__ = [
    "EVAL_INFO",
    "Aggregate",
    "EvalInfo",
    "Overall",
    "TaskMetrics",
    "TaskRecord",
    "eval_info",
    "task_group",
    "write_eval_info",
]

EVAL_INFO = "eval_info.json"


class TaskMetrics(Struct, frozen=True, kw_only=True):
    """One task's episodes, in order; the first three lists have one element a measured episode."""

    sum_rewards: list[float | None]  # None where a reward was not finite
    max_rewards: list[float | None]
    successes: list[bool | None]  # None where the environment has no success signal
    video_paths: list[str]


class TaskRecord(Struct, frozen=True, kw_only=True):
    """One task."""

    task_group: str  # LeRobot's name of the suite
    task_id: int  # index within the suite
    metrics: TaskMetrics


class Aggregate(Struct, frozen=True, kw_only=True):
    """The mean over episodes, of a group or of all; None without a value to average."""

    avg_sum_reward: float | None
    avg_max_reward: float | None
    pc_success: float | None  # percent of the episodes with a known outcome
    n_episodes: int  # measured episodes: LeRobot has no errors, so none is counted here
    video_paths: list[str]


class Overall(Aggregate, frozen=True, kw_only=True):
    """The mean over all episodes, and the time that they took."""

    eval_s: float | None  # seconds of wall time, without what a resumed run found on record
    eval_ep_s: float | None  # seconds of wall time an episode, over those that this run measured itself


class EvalInfo(Struct, frozen=True, kw_only=True):
    """The whole file."""

    per_task: list[TaskRecord]
    per_group: dict[str, Aggregate]
    overall: Overall


class _Measured(Struct, frozen=True, gc=False):
    """What is told of an episode: a long run has many, so not all of its record is held."""

    episode: int
    sum_reward: float | None
    max_reward: float | None
    success: bool | None
    video: str | None


def eval_info(results: Iterable[EpisodeResult], timing: Timing | None, out: Path = Path()) -> EvalInfo:
    """Express `results` in LeRobot's schema, ordered by suite, task_id and episode.

    Errors are left out of it, since LeRobot has none. Video paths are joined to the results directory `out`,
    since LeRobot's include its output directory.
    """
    per_task = []
    groups: dict[str, list[_Measured]] = {}
    for (suite, task_id), measured in sorted(_by_task(results).items()):
        group = task_group(suite)
        groups.setdefault(group, []).extend(measured)
        per_task.append(TaskRecord(task_group=group, task_id=task_id, metrics=_metrics(measured, out)))
    everything = [episode for measured in groups.values() for episode in measured]
    return EvalInfo(
        per_task=per_task,
        per_group={group: _aggregate(measured, out) for group, measured in groups.items()},
        overall=_overall(everything, timing, out),
    )


def write_eval_info(out: Path, results: Iterable[EpisodeResult], timing: Timing | None) -> None:
    """Write `eval_info.json` into directory `out`, atomically and as strict JSON. Raises `ResultsError`."""
    write_atomically(out / EVAL_INFO, pretty_json(eval_info(results, timing, out)))


def task_group(suite: str) -> str:
    """LeRobot's name of a suite, as its `make_env` groups tasks.

    `libero_spatial` for LIBERO; `easy`, or a task's name, for Meta-World; the environment type for LeRobot's
    own Gymnasium packages (`pusht` for `gym:gym_pusht/PushT-v0`), and the environment's id for any other.
    """
    family, _, name = suite.partition(":")
    if family == "metaworld":
        return name
    if family == "gym":
        environment = name.rpartition(":")[2]
        namespace, slash, _ = environment.partition("/")
        return namespace.removeprefix("gym_") if slash and namespace.startswith("gym_") else environment
    return suite.replace(":", "_")


def _by_task(results: Iterable[EpisodeResult]) -> dict[tuple[str, int], list[_Measured]]:
    """The measured episodes of each task, in order."""
    tasks: dict[tuple[str, int], list[_Measured]] = {}
    for result in results:
        measured = tasks.setdefault(result.task_key, [])
        if result.outcome is not Outcome.ERROR:
            measured.append(
                _Measured(result.episode, result.sum_reward, result.max_reward, result.success, result.video)
            )
    for measured in tasks.values():
        measured.sort(key=lambda episode: episode.episode)
    return tasks


def _metrics(measured: Sequence[_Measured], out: Path) -> TaskMetrics:
    return TaskMetrics(
        sum_rewards=[episode.sum_reward for episode in measured],
        max_rewards=[episode.max_reward for episode in measured],
        successes=[episode.success for episode in measured],
        video_paths=_videos(measured, out),
    )


def _aggregate(measured: Sequence[_Measured], out: Path) -> Aggregate:
    rate = mean(episode.success for episode in measured)
    return Aggregate(
        avg_sum_reward=mean(episode.sum_reward for episode in measured),
        avg_max_reward=mean(episode.max_reward for episode in measured),
        pc_success=None if rate is None else 100 * rate,
        n_episodes=len(measured),
        video_paths=_videos(measured, out),
    )


def _overall(measured: Sequence[_Measured], timing: Timing | None, out: Path) -> Overall:
    rate = None if timing is None else timing.episodes_per_s
    return Overall(
        **msgspec.structs.asdict(_aggregate(measured, out)),
        eval_s=None if timing is None else timing.wall_s,
        eval_ep_s=1 / rate if rate else None,
    )


def _videos(measured: Sequence[_Measured], out: Path) -> list[str]:
    return [str(out / episode.video) for episode in measured if episode.video is not None]
