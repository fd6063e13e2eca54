"""Suites × tasks × episodes → the fixed list of what will run, made before anything runs."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

from rollout.config import EvalConfig
from rollout.errors import UsageError
from rollout.types import EpisodeSpec, SuiteInfo, Task, VideoMode, VideoRequest

__all__ = ["plan_episodes", "shard", "video_request"]


def plan_episodes(suites: Iterable[SuiteInfo], config: EvalConfig) -> tuple[EpisodeSpec, ...]:
    """Every episode of the whole run (all shards), by suite, task and episode. Raises `UsageError`."""
    return tuple(
        _episode(suite, task, episode, config)
        for suite in suites
        for task in _selected(suite, config.tasks)
        for episode in range(config.episodes)
    )


def shard(specs: Sequence[EpisodeSpec], part: tuple[int, int] | None) -> tuple[EpisodeSpec, ...]:
    """Shard k of n: every n-th spec from the k-th, so that every shard sees every task."""
    if part is None:
        return tuple(specs)
    k, n = part
    return tuple(specs[k - 1 :: n])


def video_request(spec: EpisodeSpec, config: EvalConfig, path: Path) -> VideoRequest | None:
    """What `--video` means for this episode: `none`, `failures`, `all`, or the first N of each task."""
    match config.video:
        case "none":
            return None
        case "failures":
            return VideoRequest(path=str(path), keep=VideoMode.FAILURES)
        case int(count) if spec.episode >= count:
            return None
        case _:
            return VideoRequest(path=str(path))


def _selected(suite: SuiteInfo, task_ids: Sequence[int] | None) -> Sequence[Task]:
    if task_ids is None:
        return suite.tasks
    by_id = {task.task_id: task for task in suite.tasks}
    for task_id in task_ids:
        if task_id not in by_id:
            known = f"0 to {len(suite.tasks) - 1}" if len(suite.tasks) > 1 else "0"
            raise UsageError(
                f"--tasks {task_id}: {suite.suite} has tasks {known} (see `rollout list {suite.suite}`)"
            )
    return [by_id[task_id] for task_id in dict.fromkeys(task_ids)]


def _episode(suite: SuiteInfo, task: Task, episode: int, config: EvalConfig) -> EpisodeSpec:
    horizon = config.horizon or task.horizon
    if horizon is None:
        raise UsageError(f"{suite.suite} has no time limit of its own: give one with --horizon N")
    return EpisodeSpec(
        suite=suite.suite,
        task=task.task,
        task_id=task.task_id,
        episode=episode,
        seed=config.seed + episode,
        init_state=None if task.n_init_states is None else episode % task.n_init_states,
        horizon=horizon,
    )
