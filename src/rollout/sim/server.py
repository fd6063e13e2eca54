"""The child's end: one command after another, one simulator at a time.

`Server.handle` is the whole of it, without I/O: `serve` puts a socket around it, and `--workers 0` calls it directly.
"""

from __future__ import annotations

import copy
import os
import socket
import sys
import time
import traceback
from collections import deque
from collections.abc import Mapping
from typing import Any

import numpy as np

from rollout.envs.base import Simulator
from rollout.envs.registry import load_simulator
from rollout.errors import ResultsError, UsageError
from rollout.sim.protocol import (
    Close,
    Closed,
    Command,
    Describe,
    Described,
    Failed,
    Reply,
    Reset,
    ResetDone,
    Run,
    RunDone,
    Start,
    Started,
    WireObservation,
)
from rollout.sim.transport import BlockingConnection
from rollout.sim.video import VideoWriter
from rollout.types import EpisodeSpec, Observation, ObservationRequest, SuiteInfo, VideoMode
from rollout.values import Array, Items, pack, pack_array, unpack, unpack_array

__all__ = ["Server", "serve"]


def serve(sock: socket.socket) -> None:
    """Answer commands until `Close` or until the parent is gone."""
    connection = BlockingConnection(sock)
    server = Server()
    while (command := connection.receive()) is not None:
        reply = server.handle(command)
        connection.send(reply)
        if isinstance(reply, Closed):
            return


class Server:
    """Holds the simulator of one task and the episode that runs in it."""

    def __init__(self) -> None:
        self._class: type[Simulator] | None = None
        self._options: Mapping[str, str] = {}
        self._simulator: Simulator | None = None
        self._task: tuple[str, int] | None = None  # (suite, task_id) of the simulator
        self._building = False
        self._episode: _Episode | None = None

    def handle(self, command: Command) -> Reply:
        """Do what `command` says. Exceptions become `Failed`; exits and signals end the process, as they should."""
        try:
            return self._dispatch(command)
        except UsageError as exc:
            return Failed("UsageError", str(exc), "", ends_run="usage")
        except ResultsError as exc:  # a video could not be written: the disk is full, and not for this episode alone
            return Failed("ResultsError", str(exc), "", ends_run="results")
        except Exception as exc:  # a simulator may raise anything
            return _failed(exc, building=self._building)

    def _dispatch(self, command: Command) -> Reply:
        match command:
            case Start():
                return self._start(command)
            case Describe(name=name):
                return Described(self._adapter.describe(name, self._options))
            case Reset():
                return self._reset(command)
            case Run(actions=actions):
                assert self._episode is not None  # the parent resets first
                return self._episode.run(actions)
            case Close():
                self._close_simulator()
                return Closed()

    @property
    def _adapter(self) -> type[Simulator]:
        assert self._class is not None  # the parent starts first
        return self._class

    def _start(self, command: Start) -> Started:
        os.environ.update(command.environ)
        sys.path[:] = command.path
        self._options = command.options
        self._class = load_simulator(command.family)
        return Started(os.getpid())

    def _reset(self, command: Reset) -> ResetDone:
        if self._episode is not None:
            self._episode.abandon()
            self._episode = None
        began = time.perf_counter()
        spec = command.spec
        built = self._task != (spec.suite, spec.task_id)
        simulator = self._build(command.suite, spec.task_id) if built else self._simulator
        assert simulator is not None
        packed = pack_observation(simulator.reset(spec, command.observe))
        self._episode = _Episode(simulator, command)
        render_s = self._episode.film()
        reset_s = time.perf_counter() - began - render_s
        return ResetDone(simulator.info if built else None, packed, reset_s, render_s)

    def _build(self, suite: SuiteInfo, task_id: int) -> Simulator:
        self._close_simulator()  # never two alive: a scene may hold gigabytes
        self._building = True
        simulator = self._adapter(suite, task_id, self._options)
        simulator.build()
        self._building = False
        self._simulator, self._task = simulator, (suite.suite, task_id)
        return simulator

    def _close_simulator(self) -> None:
        if self._episode is not None:
            self._episode.abandon()
            self._episode = None
        simulator, self._simulator, self._task = self._simulator, None, None
        if simulator is not None:
            simulator.close()


class _Episode:
    """An episode in progress: executes chunks, counts steps, films."""

    def __init__(self, simulator: Simulator, command: Reset) -> None:
        self._simulator = simulator
        self._spec: EpisodeSpec = command.spec
        self._observe: ObservationRequest = command.observe
        self._keep = command.video.keep if command.video else VideoMode.ALL
        self._video = VideoWriter(command.video.path, simulator.info.fps) if command.video else None
        self._pack = pack_observation if command.observe.n_obs_steps == 1 else _pack_copy
        self._steps = 0
        self._success: bool | None = None

    def run(self, actions: Array | Items) -> RunDone:
        began = time.perf_counter()
        chunk = unpack_array(actions) if isinstance(actions, Array) else [unpack(action) for action in actions.items]
        step, n_observed = self._simulator.step, self._observe.n_obs_steps
        last, rewards, render_s = len(chunk), [], 0.0
        observations: deque[WireObservation] = deque(maxlen=n_observed)
        terminated = truncated = False
        for index, action in enumerate(chunk, 1):
            done = step(action, last - index < n_observed)
            self._steps += 1
            rewards.append(done.reward)
            if done.success is not None:
                self._success = bool(done.success) or bool(self._success)
            if self._video is not None:
                render_s += self.film()
            terminated, truncated = done.terminated, done.truncated or self._steps >= self._spec.horizon
            if terminated or truncated:
                observations.clear()
                break
            if done.observation is not None:
                observations.append(self._pack(done.observation))
        video = self._finish_video() if terminated or truncated else None
        return RunDone(
            pack_array(np.array(rewards, np.float64)), terminated, truncated, self._success, tuple(observations),
            time.perf_counter() - began - render_s, render_s, video,
        )

    def film(self) -> float:
        """Add the current frame to the video, if one was asked for. Returns the seconds that it took."""
        if self._video is None:
            return 0.0
        began = time.perf_counter()
        self._video.add(self._simulator.render())
        return time.perf_counter() - began

    def abandon(self) -> None:
        """Drop an unfinished video."""
        if self._video is not None:
            self._video.abort()
            self._video = None

    def _finish_video(self) -> str | None:
        if self._video is None:
            return None
        video, self._video = self._video, None
        return video.finish(keep=self._keep is VideoMode.ALL or not self._success)


def pack_observation(observation: Observation) -> WireObservation:
    """Describe every leaf. Arrays are not copied before the reply is encoded, so no step may come between."""
    return {key: pack(value) for key, value in observation.items()}


def _pack_copy(observation: Observation) -> WireObservation:
    """For history: simulators may write later observations into the same arrays."""
    return pack_observation(copy.deepcopy(observation))


def _failed(exc: Exception, *, building: bool) -> Failed:
    """`exc` as data. Its text is a simulator's own code, which may raise too."""
    try:
        message = str(exc)
    except Exception:
        message = "(its message could not be made: str() of the exception raised)"
    try:
        text = "".join(traceback.format_exception(exc))
    except Exception:
        text = "".join(traceback.format_tb(exc.__traceback__))
    return Failed(type(exc).__name__, message[:4096], text[-65536:], building=building)
