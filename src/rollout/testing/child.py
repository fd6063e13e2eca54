"""The simulator's process: does one order of `rollout.testing.play`, and answers on its standard output."""

from __future__ import annotations

import os
import random
import sys
import traceback
from collections.abc import Iterator
from hashlib import blake2b
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from rollout.envs.base import Simulator, Step
from rollout.envs.registry import load_simulator
from rollout.errors import UsageError
from rollout.spaces import Space, rebuild
from rollout.testing.play import UNKNOWN_KEY, Ask, Described, Episode, Part, Play, Played
from rollout.types import EpisodeSpec, Observation, ObservationRequest, TaskInfo
from rollout.values import pack

__all__ = ["main"]

GL = ("libOSMesa", "libEGL", "libGL.", "libGLX", "libcuda.")
START_SEED = 1000

_encode = msgspec.msgpack.Encoder().encode


def main() -> None:
    """Read an order from standard input, do it, write the answer to what standard output was."""
    answers = os.dup(1)
    os.dup2(2, 1)  # simulators print
    order = msgspec.msgpack.decode(sys.stdin.buffer.read(), type=Ask | Play)
    answer = _describe(order) if isinstance(order, Ask) else _Stage(order).play()
    with open(answers, "wb") as file:
        file.write(_encode(answer))


def _describe(ask: Ask) -> Described:
    adapter = load_simulator(ask.family)
    try:
        suite = adapter.describe(ask.name, ask.options)
    except Exception:
        return Described(error=traceback.format_exc())
    accepted = []
    for option, value in ask.bad_options:
        try:
            adapter.describe(ask.name, {**ask.options, option: value})
            accepted.append(f"{option}={value} was accepted")
        except UsageError:
            continue
        except Exception as exc:
            accepted.append(f"{option}={value} raised {type(exc).__name__}, not UsageError: {exc}")
    return Described(suite=suite, accepted=tuple(accepted))


class _Stage:
    """One simulator and what is found out about it."""

    def __init__(self, order: Play) -> None:
        self._order = order
        self._task = order.suite.task(order.task_id)
        self._found: dict[str, Any] = {}
        self._kept: list[tuple[str, np.ndarray, str]] = []  # delivered arrays and what was in them

    def play(self) -> Played:
        try:
            self._play()
        except Exception:
            self._found["error"] = traceback.format_exc()
        return Played(**self._found)

    def _play(self) -> None:
        order = self._order
        adapter = load_simulator(order.family)
        self._simulator: Simulator = adapter(order.suite.only(order.task_id), order.task_id, order.options)
        self._found["early"] = tuple(_early(adapter))
        _scramble()
        self._simulator.build()
        self._found["task"] = info = self._simulator.info
        episodes = [self._episode(part) for part in order.parts]
        if order.single_keys:
            alone = [Part(episode=0, keys=(key,), n_steps=1) for key in info.observation_space]
            episodes += [self._episode(part) for part in alone]
        self._found["episodes"] = tuple(episodes)
        self._found["altered"] = tuple(self._altered())
        self._found["unknown_key"] = self._ask_for_an_unknown_key()
        self._close()

    def _episode(self, part: Part) -> Episode:
        _scramble()
        n_steps = self._order.n_steps if part.n_steps is None else part.n_steps
        return _Recorder(self._simulator, self._spec(part.episode), part, n_steps, self._kept).record()

    def _altered(self) -> Iterator[str]:
        for where, array, before in self._kept:
            if _digest(array) != before:
                yield f"{where} was overwritten later"
            if not (array.flags.c_contiguous and array.flags.writeable):
                yield f"{where} is not C-ordered and writable"

    def _spec(self, episode: int) -> EpisodeSpec:
        suite, task = self._order.suite.suite, self._task
        starts = task.n_init_states
        return EpisodeSpec(
            suite=suite,
            task=task.task,
            task_id=task.task_id,
            episode=episode,
            seed=START_SEED + episode,
            init_state=None if starts is None else episode % starts,
            horizon=task.horizon or self._order.n_steps,
        )

    def _ask_for_an_unknown_key(self) -> str | None:
        try:
            self._simulator.reset(self._spec(0), ObservationRequest(keys=(UNKNOWN_KEY,)))
        except UsageError:
            return None
        except Exception as exc:
            return f"it raised {type(exc).__name__}: {exc}"
        return "it was accepted"

    def _close(self) -> None:
        try:
            self._simulator.close()
            self._simulator.close()
        except Exception:
            self._found["closing"] = traceback.format_exc()


class _Recorder:
    """Plays one episode."""

    def __init__(
        self,
        simulator: Simulator,
        spec: EpisodeSpec,
        part: Part,
        n_steps: int,
        kept: list[tuple[str, np.ndarray, str]],
    ) -> None:
        self._simulator, self._spec, self._part = simulator, spec, part
        self._n_steps, self._kept = n_steps, kept
        self._request = ObservationRequest(keys=part.keys)
        self._observations: dict[int, dict[str, str]] = {}
        self._complaints: dict[str, dict[str, None]] = {}  # by field of `Episode`; each once, in order
        self._film: list[str] = []

    def record(self) -> Episode:
        simulator, info = self._simulator, self._simulator.info
        self._note(0, simulator.reset(self._spec, self._request), info)
        self._shoot()
        rewards: list[str] = []
        endings: list[tuple[bool, bool, bool | None]] = []
        for index, action in zip(range(1, self._n_steps + 1), self._actions(info), strict=False):
            step = simulator.step(action, self._looks_at(index))
            rewards.append(float(step.reward).hex())
            endings.append(self._ending(step))
            if step.observation is not None:
                if not self._looks_at(index):
                    self._complain("unasked", "a step that nobody looks at gave an observation")
                self._note(index, step.observation, info)
            elif self._looks_at(index):
                self._complain("unasked", "a step that is looked at gave no observation")
            self._shoot()
            if step.terminated or step.truncated:
                break
        return Episode(
            asked=self._part.keys,
            observations=self._observations,
            rewards=tuple(rewards),
            endings=tuple(endings),
            film=tuple(self._film),
            **{subject: tuple(texts) for subject, texts in self._complaints.items()},
        )

    def _looks_at(self, index: int) -> bool:
        every = self._part.every
        return index == self._n_steps if every == 0 else index % every == 0

    def _actions(self, info: TaskInfo) -> Iterator[Any]:
        space = rebuild(info.action_space)
        space.seed(self._spec.seed)
        while True:
            yield space.sample()

    def _note(self, index: int, observation: Observation, info: TaskInfo) -> None:
        where = f"at step {index}" if index else "after the reset"
        asked = [key for key in info.observation_space if self._request.wants(key)]
        for key in {*observation, *asked} - {"task"}:  # the instruction costs nothing: it may always be there
            if key not in observation:
                self._complain("unasked", f"{key} is missing {where}")
            elif key not in asked:
                self._complain("unasked", f"{key} is there {where}, and was not asked for")
        self._observations[index] = {key: _digest(value) for key, value in observation.items()}
        for key, value in observation.items():
            wrong = _misfit(value, info.observation_space.get(key))
            if wrong is not None and (key != "task" or not isinstance(value, str)):
                self._complain("outside", f"{key} {wrong} {where}")
            if isinstance(value, np.ndarray):
                self._kept.append((f"{key} {where}", value, self._observations[index][key]))

    def _ending(self, step: Step) -> tuple[bool, bool, bool | None]:
        for name in ("terminated", "truncated", "success"):
            value = getattr(step, name)
            if type(value) is not bool and not (name == "success" and value is None):
                self._complain("flags", f"{name} is {value!r} of type {type(value).__name__}")
        if type(step.reward) is not float:
            self._complain("flags", f"reward is {step.reward!r} of type {type(step.reward).__name__}")
        success = None if step.success is None else bool(step.success)
        return bool(step.terminated), bool(step.truncated), success

    def _shoot(self) -> None:
        if not self._part.film:
            return
        try:
            frame: Any = self._simulator.render()
        except Exception as exc:
            self._complain("pictures", f"render() raised {type(exc).__name__}: {exc}")
            return
        if not (
            isinstance(frame, np.ndarray)
            and frame.dtype == np.uint8
            and frame.ndim == 3
            and frame.shape[2] == 3
            and frame.size
        ):
            self._complain("pictures", f"render() gave {_what(frame)}, no uint8 (height, width, 3)")
            return
        self._film.append(_digest(frame))

    def _complain(self, subject: str, text: str) -> None:
        self._complaints.setdefault(subject, {})[text] = None


def _early(adapter: type[Simulator]) -> Iterator[str]:
    """What is loaded although nothing was built."""
    for requirement in adapter.requires:
        if requirement.module in sys.modules:
            yield f"{requirement.module} is imported"
    mapped = Path("/proc/self/maps")
    text = mapped.read_text() if mapped.exists() else ""
    for name in GL:
        if name in text:
            yield f"{name.rstrip('.')} is loaded"


def _scramble() -> None:
    """The process-wide generators as another simulator, or another run, may leave them."""
    random.seed()
    np.random.seed(None)


def _misfit(value: Any, space: Space | None) -> str | None:
    """Why `value` is not an element of `space`."""
    if space is None:
        return "is not in the task's observation space"
    shape, dtype = getattr(space, "shape", None), getattr(space, "dtype", None)
    if (
        isinstance(value, np.ndarray)
        and shape is not None
        and (value.shape, value.dtype.str) != (shape, dtype)
    ):
        return f"is {_what(value)}, and should be {dtype} {shape}"
    try:
        pack(value)
    except (TypeError, ValueError) as exc:
        return f"cannot be sent: {exc}"
    return None if rebuild(space).contains(value) else f"is {_what(value)} outside of its space"


def _what(value: Any) -> str:
    if isinstance(value, np.ndarray):
        return f"{value.dtype.str} {value.shape}"
    return f"{type(value).__name__} {value!r:.60}"


def _digest(value: Any) -> str:
    try:
        packed = pack(value)
    except (TypeError, ValueError):
        return "cannot be sent"
    return blake2b(_encode(packed), digest_size=12).hexdigest()
