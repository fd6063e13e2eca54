"""Runs as a process of its own, whose memory nobody else fills: measures what evaluations leave behind.

`leaks.py MODE N`, in an empty directory: N evaluations (`fresh`: an engine each; `kept`: one engine for all), or one of
N episodes (`long`). Prints JSON: samples of this process, by evaluation or by episode.
"""

from __future__ import annotations

import gc
import json
import os
import sys
import threading
from pathlib import Path
from typing import Any

import anyio

import rollout
from rollout import EpisodeResult, Report

COUNT = "gym:toys:toy/Count-v0"
PAGE = os.sysconf("SC_PAGE_SIZE")


def sample() -> dict[str, int]:
    children = Path(f"/proc/self/task/{os.getpid()}/children").read_text().split()
    return {
        "rss": int(Path("/proc/self/statm").read_text().split()[1]) * PAGE,
        "descriptors": len(os.listdir("/proc/self/fd")),
        "threads": threading.active_count(),
        "children": len(children),
    }


def fresh(count: int) -> list[dict[str, int]]:
    samples = []
    for number in range(count):
        rollout.run("random", COUNT, episodes=2, workers=1, out=f"run{number}")
        samples.append(sample())
    return samples


def kept(count: int) -> list[dict[str, int]]:
    async def main() -> list[dict[str, int]]:
        samples = []
        async with rollout.Engine(COUNT, episodes=4, workers=2) as engine:
            for number in range(count):
                await engine.evaluate("random", out=f"run{number}")
                samples.append(sample())
        return samples

    return anyio.run(main)


class Watch:
    """A display that takes a sample now and then."""

    interval_s = 0.5

    def __init__(self) -> None:
        self.done = 0
        self.samples: list[dict[str, int]] = []

    def start(self, plan: Any, counters: Any) -> None: ...
    def refresh(self) -> None: ...
    def note(self, message: str) -> None: ...
    def finish(self) -> None: ...

    def episode(self, result: EpisodeResult) -> None:
        self.done += 1
        if self.done % 1000 == 0:
            self.samples.append(sample())


def long(count: int) -> list[dict[str, int]]:
    watch = Watch()
    report: Report = rollout.run(
        "random", COUNT, episodes=count, workers=2, horizon=1, out="run", display=watch
    )
    assert len(report.episodes) == count
    gc.collect()
    return [*watch.samples, sample()]  # the last one with the results written, and the report still held


if __name__ == "__main__":
    measure = {"fresh": fresh, "kept": kept, "long": long}[sys.argv[1]]
    print(json.dumps(measure(int(sys.argv[2]))))
