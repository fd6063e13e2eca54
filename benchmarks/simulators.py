"""What rendering on demand, the fast reset and the preloaded forkserver are worth, as ratios measured in one run.

    python benchmarks/simulators.py [--rounds 3] [--only NAME ...] [--json FILE]

Each measurement runs in a fresh process, and the two sides of a ratio alternate, so that a noisy machine is noisy to
both. One worker, software rendering where there is no GPU.

* steps: env-steps per second of a whole evaluation at 8 steps a decision, with a policy that reads every camera and
  returns at once: once with its one frame a decision, once with a history of 8 (`n_obs_steps=8`), for which every step
  is rendered. Resets are not in it.
* reset: LIBERO's `env.reset()` alone, hard (the model compiled and the GL context made anew) and fast.
* start: the whole way from one episode to the first observation of the next (settle steps, one frame a camera).
* build: what a worker takes from nothing built to a built simulator, its imports done.
* workers: seconds until 8 LIBERO workers have answered, imports done, after the forkserver's preload.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any

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

        shape = (CHUNK, *rebuild(requests[0].task.action_space).shape)
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


def _quietly_built(family: str, name: str, options: dict[str, str]) -> tuple[Any, float]:
    import contextlib
    import os

    from rollout.envs.registry import load_simulator
    from rollout.rendering import choose_backend, worker_environment

    os.environ.update(worker_environment(choose_backend("auto"), 0))
    with contextlib.redirect_stdout(sys.stderr):  # LIBERO prints
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
    simulator, _ = _quietly_built("libero", "spatial", {**SIZE, "reset": reset})
    simulator._pictures.expect(())
    simulator._env.reset()
    return _median_s(simulator._env.reset, 20 if reset == "fast" else 5)


def libero_start(reset: str) -> float:
    """Seconds from one episode to the next one's first observation."""
    from rollout.types import EpisodeSpec, ObservationRequest

    simulator, _ = _quietly_built("libero", "spatial", {**SIZE, "reset": reset})
    spec = EpisodeSpec(
        suite="libero:spatial", task="", task_id=0, episode=0, seed=1000, init_state=0, horizon=80
    )
    simulator.reset(spec, ObservationRequest())
    return _median_s(lambda: simulator.reset(spec, ObservationRequest()), 5)


def libero_build() -> float:
    """Seconds of building a scene."""
    return _quietly_built("libero", "spatial", SIZE)[1]


def metaworld_build() -> float:
    """Seconds of building a task."""
    return _quietly_built("metaworld", "push-v3", {})[1]


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


# name -> unit, and the measurements: of a pair, the ratio is that of the first to the second.
MEASURED: dict[str, tuple[str, dict[str, Callable[[], float]]]] = {
    "LIBERO steps, chunk 8": (
        "steps/s",
        {"on demand": lambda: libero_steps(1), "every step rendered": lambda: libero_steps(CHUNK)},
    ),
    "LIBERO reset": (
        "s",
        {"hard": lambda: libero_reset("hard"), "fast": lambda: libero_reset("fast")},
    ),
    "LIBERO start of an episode": (
        "s",
        {"hard reset": lambda: libero_start("hard"), "fast reset": lambda: libero_start("fast")},
    ),
    "LIBERO build": ("s", {"scene": libero_build}),
    "LIBERO, 8 workers up": ("s", {"after the preload": libero_workers}),
    "Meta-World steps, chunk 8": (
        "steps/s",
        {"on demand": lambda: metaworld_steps(1), "every step rendered": lambda: metaworld_steps(CHUNK)},
    ),
    "Meta-World build": ("s", {"MT1": metaworld_build_mt1, "ours": metaworld_build}),
}


def measure(name: str, side: str) -> float:
    """In a process of its own."""
    command = [sys.executable, __file__, "--measure", name, side]
    done = subprocess.run(command, check=False, capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(f"{name}, {side}: {done.stderr}")
    return float(done.stdout.splitlines()[-1])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--rounds", type=int, default=3, help="measurements of each side")
    parser.add_argument("--only", nargs="+", choices=MEASURED, metavar="NAME", help=", ".join(MEASURED))
    parser.add_argument("--json", help="also write the result to this file")
    parser.add_argument("--measure", nargs=2, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.measure:
        name, side = options.measure
        print(MEASURED[name][1][side]())
        return
    rows = []
    print("| what | unit | median | lowest to highest | ratio |\n|---|---|---|---|---|")
    for name in options.only or MEASURED:
        rows.append(row(name, options.rounds))
        print(as_markdown(rows[-1]), flush=True)
    result = json.dumps(rows)
    print(result)
    if options.json is not None:
        with open(options.json, "w") as file:
            file.write(result + "\n")


def row(name: str, rounds: int) -> dict[str, Any]:
    """The medians of both sides, and the median of the rounds' ratios."""
    unit, sides = MEASURED[name]
    values: dict[str, list[float]] = {side: [] for side in sides}
    for _ in range(rounds):
        for side, measured in values.items():
            measured.append(measure(name, side))
    ratio = None
    if len(sides) == 2:
        first, second = values.values()
        ratio = statistics.median(a / b for a, b in zip(first, second, strict=True))
    return {"name": name, "unit": unit, "values": values, "ratio": ratio}


def as_markdown(row: dict[str, Any]) -> str:
    """One line a side."""
    lines = []
    for index, (side, values) in enumerate(row["values"].items()):
        digits = ".1f" if row["unit"] == "steps/s" else ".3f"
        ratio = f"{row['ratio']:.1f}" if index == 0 and row["ratio"] else ""
        low, high = format(min(values), digits), format(max(values), digits)
        median = format(statistics.median(values), digits)
        lines.append(f"| {row['name']}, {side} | {row['unit']} | {median} | {low} to {high} | {ratio} |")
    return "\n".join(lines)


if __name__ == "__main__":
    main()
