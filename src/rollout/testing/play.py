"""What a contract has a simulator do in a process of its own, and what it hears of it.

A process of its own, because a GL context disturbs another one's pictures, and because what a simulator leaves behind
in a process is a part of what is tested.
"""

from __future__ import annotations

import os
import subprocess
import sys
from functools import cache, lru_cache
from typing import Final, TypeVar

import msgspec
from msgspec import Struct

from rollout.rendering import choose_backend, worker_environment
from rollout.types import SuiteInfo, TaskInfo

__all__ = ["Ask", "Described", "Episode", "Part", "Play", "Played", "run"]

T = TypeVar("T", bound=Struct)
UNKNOWN_KEY: Final = "observation.images.no_such_camera"


class Ask(Struct, frozen=True, kw_only=True, tag=True):
    """List a suite's tasks, and say what becomes of option values that cannot be right."""

    family: str
    name: str
    options: dict[str, str]
    bad_options: tuple[tuple[str, str], ...]


class Described(Struct, frozen=True, kw_only=True):
    """The answer to `Ask`."""

    error: str | None = None  # all else is empty then
    suite: SuiteInfo | None = None
    accepted: tuple[str, ...] = ()  # the bad options that were not refused with a `UsageError`, and how


class Part(Struct, frozen=True, kw_only=True):
    """One episode to play."""

    episode: int  # decides the seed, the initial state and the actions
    keys: tuple[str, ...] | None = None
    every: int = 1  # which steps are looked at; 0: the last alone
    film: bool = False
    n_steps: int | None = None  # None: as the play says


class Play(Struct, frozen=True, kw_only=True, tag=True):
    """Build a simulator, play episodes on it one after the other, close it twice."""

    family: str
    suite: SuiteInfo
    task_id: int
    options: dict[str, str]
    n_steps: int
    parts: tuple[Part, ...]
    single_keys: bool = False  # and one more episode for each observation key, asked for alone


class Episode(Struct, frozen=True, kw_only=True):
    """What was seen of an episode. Values are digests of contents, dtypes and shapes."""

    asked: tuple[str, ...] | None
    observations: dict[int, dict[str, str]] = {}  # by step; 0 is the reset's
    rewards: tuple[str, ...] = ()  # in hexadecimal
    endings: tuple[tuple[bool, bool, bool | None], ...] = ()  # terminated, truncated, success
    film: tuple[str, ...] = ()
    outside: tuple[str, ...] = ()  # observations that are not in their spaces
    unasked: tuple[str, ...] = ()  # observations that nobody asked for, and missing ones
    flags: tuple[str, ...] = ()  # rewards and endings of a wrong type
    pictures: tuple[str, ...] = ()  # of a film that are none


class Played(Struct, frozen=True, kw_only=True):
    """The answer to `Play`."""

    error: str | None = None  # what follows is what was known until then
    early: tuple[str, ...] = ()  # what the constructor did that only `build` may do
    task: TaskInfo | None = None
    episodes: tuple[Episode, ...] = ()
    altered: tuple[str, ...] = ()  # observations that later steps wrote into, or that cannot be written into
    unknown_key: str | None = None  # what came of asking for a key that there is not; None: a `UsageError`
    closing: str | None = None  # a traceback
    stderr: str = ""


def run(order: Ask | Play, reply: type[T], timeout_s: float) -> T:
    """Have `order` done in a fresh process, once: the same order is answered from memory.

    Where the process ends without an answer, or takes longer than `timeout_s`, the reply has that as its `error`.
    """
    return msgspec.msgpack.decode(_run(msgspec.msgpack.encode(order), timeout_s), type=reply)


@lru_cache(maxsize=64)
def _run(order: bytes, timeout_s: float) -> bytes:
    code = f"import sys; sys.path[:] = {sys.path!r}; from rollout.testing.child import main; main()"
    try:
        done = subprocess.run(
            [sys.executable, "-c", code],
            input=order,
            env=_environ(),
            capture_output=True,
            timeout=timeout_s,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return _failed(f"the simulator's process took longer than {timeout_s:g} s")
    text = done.stderr.decode(errors="replace")
    if done.returncode or not done.stdout:
        return _failed(f"the simulator's process ended with status {done.returncode}:\n{text[-4000:]}")
    return msgspec.msgpack.encode(msgspec.msgpack.decode(done.stdout) | {"stderr": text})


def _failed(text: str) -> bytes:
    return msgspec.msgpack.encode({"error": text})


@cache
def _environ() -> dict[str, str]:
    """A worker's environment (see `rollout.api`)."""
    backend = choose_backend("auto")
    threads = {f"{library}_NUM_THREADS": "1" for library in ("OMP", "MKL", "OPENBLAS")}
    return {**threads, **os.environ, **worker_environment(backend, 0)}
