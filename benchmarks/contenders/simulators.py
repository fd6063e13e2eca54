"""Parts of a simulator's work: steps with and without needless frames, resets, builds, workers.

One worker, software rendering where there is no GPU.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from typing import Any

from benchmarks.job import Job, Measured, Unavailable, answer

CHUNK = 8
SIZE = {"height": "256", "width": "256"}


class Shaking:
    """Small pseudo-random moves, the same in every run; reads everything."""

    def __init__(self, n_obs_steps: int) -> None:
        from rollout import PolicySpec

        self.spec = PolicySpec(n_obs_steps=n_obs_steps, chunk_size=CHUNK, n_action_steps=CHUNK)

    def infer(self, requests: Sequence[Any]) -> Sequence[Any]:
        """A chunk a request."""
        import numpy as np

        from rollout.spaces import rebuild

        space: Any = rebuild(requests[0].task.action_space)
        shape = (CHUNK, *space.shape)
        return [
            np.random.default_rng(request.noise_seed).uniform(-0.3, 0.3, shape).astype(np.float32)
            for request in requests
        ]


def steps_per_s(target: str, n_obs_steps: int, **settings: Any) -> float:
    """Of the episodes that found their simulator built, without their resets."""
    import rollout

    report = rollout.run(Shaking(n_obs_steps), target, workers=1, **settings)
    assert report.summary.overall.n_error == 0, report.episodes[0].error
    warm = [episode for episode in report.episodes if not episode.built]
    spent = (episode.time_s for episode in warm)
    return sum(episode.steps for episode in warm) / sum(t.sim + t.render + t.wait for t in spent)


def libero_steps(n_obs_steps: int) -> float:
    """Env-steps per second of libero:spatial 0."""
    return steps_per_s("libero:spatial", n_obs_steps, tasks=(0,), episodes=3, horizon=80, options=SIZE)


def metaworld_steps(n_obs_steps: int) -> float:
    """Env-steps per second of push-v3."""
    return steps_per_s("metaworld:push-v3", n_obs_steps, episodes=3, horizon=80)


def _built(family: str, name: str, options: dict[str, str]) -> tuple[Any, float]:
    import os

    from rollout.envs.registry import load_simulator
    from rollout.rendering import choose_backend, worker_environment

    os.environ.update(worker_environment(choose_backend("auto"), 0))
    adapter: Any = load_simulator(family)
    suite = adapter.describe(name, options)
    adapter(suite, 0, options).build()  # the imports, and whatever is read once
    simulator = adapter(suite, 0, options)
    began = time.perf_counter()
    simulator.build()
    return simulator, time.perf_counter() - began


def _median_s(call: Callable[[], Any], times: int) -> float:
    taken = []
    for _ in range(times):
        began = time.perf_counter()
        call()
        taken.append(time.perf_counter() - began)
    return statistics.median(taken)


def libero_reset(reset: str) -> float:
    """Seconds of `env.reset()`."""
    simulator, _ = _built("libero", "spatial", {**SIZE, "reset": reset})
    simulator._pictures.expect(())
    simulator._env.reset()
    return _median_s(simulator._env.reset, 20 if reset == "fast" else 5)


def libero_start(reset: str) -> float:
    """Seconds from one episode to the next one's first observation."""
    from rollout.types import EpisodeSpec, ObservationRequest

    simulator, _ = _built("libero", "spatial", {**SIZE, "reset": reset})
    spec = EpisodeSpec(
        suite="libero:spatial", task="", task_id=0, episode=0, seed=1000, init_state=0, horizon=80
    )
    simulator.reset(spec, ObservationRequest())
    return _median_s(lambda: simulator.reset(spec, ObservationRequest()), 5)


def libero_build() -> float:
    """Seconds of building a scene."""
    return _built("libero", "spatial", SIZE)[1]


def metaworld_build() -> float:
    """Seconds of building a task."""
    return _built("metaworld", "push-v3", {})[1]


def metaworld_build_mt1() -> float:
    """Seconds of Meta-World's own way to one task."""
    import metaworld

    def build() -> None:
        mt1 = metaworld.MT1("push-v3", seed=42)
        mt1.train_classes["push-v3"](render_mode="rgb_array").set_task(mt1.train_tasks[0])

    return _median_s(build, 5)


def libero_workers() -> float:
    """Seconds until 8 workers have answered."""
    import anyio

    from rollout.api import Engine

    async def main() -> float:
        async with Engine("libero:spatial", workers=9) as engine:
            await engine.describe()  # the preload is over, and one worker is there
            began = time.perf_counter()
            async with anyio.create_task_group() as starting:
                for index in range(1, 9):
                    slot = engine._slot(index)
                    starting.start_soon(slot.ready, "libero", engine._options["libero"])
            return time.perf_counter() - began

    return anyio.run(main)


MEASURED: dict[str, Callable[..., float]] = {
    "libero_steps": libero_steps,
    "libero_reset": libero_reset,
    "libero_start": libero_start,
    "libero_build": libero_build,
    "libero_workers": libero_workers,
    "metaworld_steps": metaworld_steps,
    "metaworld_build": metaworld_build,
    "metaworld_build_mt1": metaworld_build_mt1,
}


def measure(job: Job) -> Measured:
    """One of `MEASURED`, in steps a second or in seconds."""
    from rollout.errors import UsageError

    try:
        return Measured(MEASURED[job.case["measured"]](**job.case.get("arguments", {})))
    except UsageError as exc:
        raise Unavailable(str(exc)) from exc


if __name__ == "__main__":
    answer(measure)
