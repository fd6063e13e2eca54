"""Policies that tests offer with `rollout serve`."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from hashlib import blake2b
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from rollout import PolicySpec, Request
from rollout.spaces import Fields, rebuild
from rollout.values import pack

STATE = "observation.state"


class Wandering:
    """Remembers, looks back, draws noise, and returns chunks of which a part is executed."""

    spec = PolicySpec(observation_keys=(STATE,), n_obs_steps=2, chunk_size=4, n_action_steps=2)

    def open_session(self, episode: Any, task: Any) -> dict[str, float]:
        return {"torque": 0.0}

    def infer(self, requests: Sequence[Request]) -> list[np.ndarray]:
        return [self._chunk(request) for request in requests]

    def _chunk(self, request: Request) -> np.ndarray:
        noise = np.random.default_rng(request.noise_seed).normal(0, 0.3, (4, 1))
        state = request.observation[STATE]
        request.session["torque"] = 0.8 * request.session["torque"] - 0.2 * float(state[-1, 2] + state[0, 2])
        chunk: np.ndarray = request.session["torque"] + noise
        return chunk


class Plain:
    """Stateless: two actions, the state and its double; `image`, where the spec names it, adds its mean."""

    def __init__(self, image: bool = False) -> None:
        keys = (STATE, "observation.images.image") if image else (STATE,)
        self.spec = PolicySpec(observation_keys=keys, chunk_size=2)

    def infer(self, requests: Sequence[Request]) -> list[np.ndarray]:
        return [self._chunk(request.observation) for request in requests]

    def _chunk(self, observation: dict[str, Any]) -> np.ndarray:
        if observation["task"] == "fail":
            raise ValueError("no weights today")
        state = observation[STATE] + observation.get("observation.images.image", np.zeros(1)).mean()
        chunk: np.ndarray = np.stack([state, 2 * state])
        return chunk


class Slow(Plain):
    """Takes its time, and writes down the sizes of its batches."""

    def __init__(self, log: str, seconds: float = 0.05) -> None:
        super().__init__()
        self._log, self._seconds = Path(log), seconds

    def infer(self, requests: Sequence[Request]) -> list[np.ndarray]:
        with self._log.open("a") as file:
            file.write(f"{len(requests)}\n")
        time.sleep(self._seconds)
        return super().infer(requests)


class Alike(Plain):
    """Stacks what it gets, as a module's batch is stacked, so that it fails where shapes differ."""

    def infer(self, requests: Sequence[Request]) -> list[np.ndarray]:
        time.sleep(0.05)
        stacked = np.stack([request.observation[STATE] for request in requests])
        return list(stacked[:, np.newaxis])


class Nested:
    """Returns what is no array."""

    def infer(self, requests: Sequence[Request]) -> list[Any]:
        return [[{"move": 1, "say": "hello"}] for _ in requests]


class Dying(Plain):
    """Ends its process, as a kernel that runs out of memory does, the first time that it meets step `at`."""

    def __init__(self, at: int, once: str, remembers: bool = False) -> None:
        super().__init__()
        self._at, self._once, self._remembers = at, Path(once), remembers

    def open_session(self, episode: Any, task: Any) -> dict[str, int] | None:
        return {} if self._remembers else None

    def infer(self, requests: Sequence[Request]) -> list[np.ndarray]:
        if any(request.decision == self._at for request in requests) and not self._once.exists():
            self._once.touch()
            os._exit(9)
        return [request.observation[STATE][np.newaxis, :1] for request in requests]


class Echoing:
    """Acts by chance, from everything that it observes, to the last bit."""

    def open_session(self, episode: Any, task: Any) -> Any:
        return rebuild(task.action_space)

    def infer(self, requests: Sequence[Request]) -> list[Any]:
        return [[self._sample(request)] for request in requests]

    def _sample(self, request: Request) -> Any:
        seen = msgspec.msgpack.encode(
            [(key, pack(value)) for key, value in sorted(request.observation.items())]
        )
        request.session.seed(int.from_bytes(blake2b(seen, digest_size=4).digest(), "little"))
        return request.session.sample()


class Compared(Plain):
    """Compares its actions with the robot's, unless nobody says what those are."""

    def open_session(self, episode: Any, task: Any) -> None:
        assert task.action_space == Fields(())
        assert task.observation_space == {}


class Single(Plain):
    """Moves one joint."""

    def infer(self, requests: Sequence[Request]) -> list[np.ndarray]:
        return [chunk[:, :1] for chunk in super().infer(requests)]


class Broken(Single):
    """Its second action is no number, or infinite where it is told to go far."""

    def infer(self, requests: Sequence[Request]) -> list[np.ndarray]:
        chunks = super().infer(requests)
        for request, chunk in zip(requests, chunks, strict=True):
            chunk[1:] = np.inf if request.observation["task"] == "far" else np.nan
        return chunks


class Roomy(Plain):
    """Has memory for `room` requests at once, and remembers how many it has answered."""

    def __init__(self, room: int) -> None:
        super().__init__()
        self._room = room
        self.sizes: list[int] = []

    def infer(self, requests: Sequence[Request]) -> list[np.ndarray]:
        if len(requests) > self._room:
            raise MemoryError("no room")
        self.sizes.append(len(requests))
        return super().infer(requests)


class Loading(Single):
    """Says on the pipe `at` that it loads, then waits until something is written into it."""

    def __init__(self, at: str) -> None:
        super().__init__()
        Path(at).write_text("loading")
        Path(at).read_text()


class Failing(Plain):
    """Raises at step 3."""

    def infer(self, requests: Sequence[Request]) -> list[np.ndarray]:
        if any(request.step == 3 for request in requests):
            raise ValueError("at step 3")
        return [request.observation[STATE][np.newaxis, :1] for request in requests]
