"""The child's end: one command after another, one simulator at a time.

`Server.handle` is the whole of it, without I/O: `serve` puts pipes around it, and `--workers 0` calls it directly.
"""

from __future__ import annotations

import gc
import os
import sys
import time
from array import array
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import numpy as np

from rollout.envs.base import Simulator
from rollout.envs.gl import choose_again
from rollout.envs.gymnasium_handover import adopt
from rollout.envs.registry import load_simulator
from rollout.envs.remarks import remark, remarks
from rollout.errors import ProtocolError, ResultsError, UsageError
from rollout.resources import trim_memory
from rollout.sim.failures import failed, message_of
from rollout.sim.protocol import (
    Build,
    Built,
    Close,
    Closed,
    Command,
    Describe,
    Described,
    Failed,
    Release,
    Released,
    Reply,
    Reset,
    ResetDone,
    Run,
    RunDone,
    Start,
    Started,
    WireObservation,
)
from rollout.sim.transport import BlockingConnection, Ends
from rollout.sim.video import VideoWriter, current_umask
from rollout.types import Observation, SuiteInfo, VideoMode
from rollout.values import Array, Items, pack, pack_array, sendable, unpack, unpack_array

__all__ = ["Server", "serve"]


def serve(read: int, write: int) -> None:
    """Answer commands from descriptor `read` on `write`, until `Close` or until the parent is gone."""
    connection, pid = BlockingConnection(Ends(read, write)), os.getpid()
    server = Server()
    while (command := connection.receive()) is not None:
        reply = server.handle(command)
        if os.getpid() != pid:  # a copy that the simulator forked came back: two answers would be mixed up
            os._exit(0)
        try:
            connection.send(reply)
        except OSError:
            raise  # the parent is gone
        except Exception as exc:  # nothing is sent yet: a text that is no Unicode, a frame that is too long
            connection.send(failed(exc, building=False))
        if isinstance(reply, Closed):
            return


class Server:
    """Holds the simulator of one task and the episode that runs in it."""

    def __init__(self, *, inline: bool = False) -> None:
        """`inline`: in the parent's own process, where Ctrl-C is the user's, and an exit would be everybody's."""
        self._inline = inline
        self._umask = current_umask()  # before any simulator can change it
        self._class: type[Simulator] | None = None
        self._options: Mapping[str, str] = {}
        self._simulator: Simulator | None = None
        self._task: tuple[str, int] | None = None  # (suite, task_id) of the simulator
        self._building = False
        self._episode: _Episode | None = None

    def handle(self, command: Command) -> Reply:
        """Do what `command` says. Exceptions become `Failed`; exits and signals end a worker, as they should."""
        try:
            if isinstance(command, Run) and self._episode is not None:  # the hot path
                return self._episode.run(command.actions)
            return self._dispatch(command)
        except UsageError as exc:
            return Failed("UsageError", sendable(str(exc)), "", ends_run="usage")
        except ResultsError as exc:
            # A video could not be written: the disk is full, and not for this episode alone.
            return Failed("ResultsError", sendable(str(exc)), "", ends_run="results")
        except BaseException as exc:  # a simulator may raise anything: a cancelled coroutine, a Rust panic
            if self._is_meant(exc):
                raise
            return failed(exc, building=self._building or isinstance(command, Start))

    def _is_meant(self, exc: BaseException) -> bool:
        """Whether it is to end the process. An exit with a text is an error's; Ctrl-C reaches no worker."""
        if self._inline:
            return isinstance(exc, KeyboardInterrupt)
        return isinstance(exc, SystemExit) and not isinstance(exc.code, str)

    def _dispatch(self, command: Command) -> Reply:
        match command:
            case Start():
                return self._start(command)
            case Describe(name=name):
                return Described(self._adapter.describe(name, self._options))
            case Build():
                return self._build(command.suite, command.task_id)
            case Reset():
                return self._reset(command)
            case Run():
                raise ProtocolError("an action chunk came before a reset")
            case Release():
                self._close_simulator()
                return Released()
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
        adopt(command.registrations)
        return Started(os.getpid())

    def _reset(self, command: Reset) -> ResetDone:
        self._abandon_episode()
        remarks.begin()
        began = time.perf_counter()
        spec, simulator = command.spec, self._simulator
        if simulator is None or self._task != spec.task_key:
            raise ProtocolError("a reset came before its simulator was built")
        observation = simulator.reset(spec, command.observe)
        self._episode = episode = _Episode(simulator, command, self._umask)
        render_s = episode.film()
        reset_s = time.perf_counter() - began - render_s
        return ResetDone(
            episode.pack(observation),
            reset_s,
            render_s,
            bool(getattr(simulator, "success_at_reset", False)),
            remarks.take(),
        )

    def _build(self, suite: SuiteInfo, task_id: int) -> Built:
        self._close_simulator()  # never two alive: a scene may hold gigabytes
        _release_memory()
        began = time.perf_counter()
        remarks.begin()
        self._building = True
        choose_again()  # what was imported before this process knew which back end it has
        simulator = self._adapter(suite, task_id, self._options)
        simulator.build()
        self._building = False
        _release_memory()
        self._simulator, self._task = simulator, (suite.suite, task_id)
        return Built(simulator.info, time.perf_counter() - began, remarks.take())

    def _abandon_episode(self) -> None:
        episode, self._episode = self._episode, None
        if episode is not None:
            episode.abandon()

    def _close_simulator(self) -> None:
        self._abandon_episode()
        simulator, self._simulator, self._task = self._simulator, None, None
        if simulator is not None:
            simulator.close()


class _Episode:
    """An episode in progress: executes chunks, counts steps, films."""

    def __init__(self, simulator: Simulator, command: Reset, umask: int) -> None:
        self._step, self._render = simulator.step, simulator.render
        self._horizon = command.spec.horizon
        self._n_observed = command.observe.n_obs_steps
        self._instruction = simulator.info.instruction
        self._keep = command.video.keep if command.video else VideoMode.ALL
        film = command.video
        self._video = VideoWriter(film.path, simulator.info.fps, umask=umask) if film else None
        self._steps = 0
        self._success: bool | None = None
        self._unreadable = False

    def run(self, actions: Array | Items) -> RunDone:
        """Execute a chunk, or as much of it as the episode lasts."""
        began = time.perf_counter()
        chunk = (
            unpack_array(actions)
            if isinstance(actions, Array)
            else [unpack(action) for action in actions.items]
        )
        left = self._horizon - self._steps
        # No decision follows an episode's last step: nothing is rendered for it.
        step, first_observed = self._step, len(chunk) - self._n_observed if len(chunk) < left else left
        rewards: list[float] = []
        observations: list[WireObservation] = []
        render_s, ended = 0.0, False
        for action in chunk:
            done = step(action, len(rewards) >= first_observed)
            rewards.append(done.reward)
            if done.success is not None:
                self._success = bool(done.success) or bool(self._success)
            self._unreadable = self._unreadable or done.unreadable
            if self._video is not None:
                render_s += self.film()
            out_of_time = len(rewards) >= left
            ended = done.terminated or done.truncated or out_of_time
            if ended:
                break
            if done.observation is not None:
                observations.append(self.pack(done.observation))
        self._steps += len(rewards)
        filmed = ended and self._finish_video()
        return RunDone(
            array("d", rewards).tobytes(),
            done.terminated,
            done.truncated or out_of_time,
            None if self._unreadable and not self._success else self._success,
            () if ended else tuple(observations),
            time.perf_counter() - began - render_s,
            render_s,
            filmed,
            remarks.take(),
        )

    def pack(self, observation: Observation) -> WireObservation:
        """Describe every leaf; the instruction only where it is not the task's own."""
        if "task" in observation and observation["task"] == self._instruction:
            del observation["task"]
        return {
            key: pack_array(value) if isinstance(value, np.ndarray) else pack(value)
            for key, value in observation.items()
        }

    def film(self) -> float:
        """Add the current frame to the video, if one was asked for. Returns the seconds that it took."""
        if self._video is None:
            return 0.0
        began = time.perf_counter()
        with self._no_matter():
            self._video.add(self._render())
        return time.perf_counter() - began

    @contextmanager
    def _no_matter(self) -> Iterator[None]:
        """A picture must not cost the episode's result: where there is none, the video is dropped, and that is told."""
        try:
            yield
        except (UsageError, ResultsError, KeyboardInterrupt):
            raise
        except BaseException as exc:
            remark(f"an episode has no video: {type(exc).__name__}: {message_of(exc)}")
            self.abandon()

    def abandon(self) -> None:
        """Drop an unfinished video."""
        if self._video is not None:
            self._video.abort()
            self._video = None

    def _finish_video(self) -> bool:
        if self._video is None:
            return False
        video, self._video = self._video, None
        with self._no_matter():
            return video.finish(keep=self._keep is VideoMode.ALL or not self._success) is not None
        return False


def _release_memory() -> None:
    """Give back what is not used: simulators are full of cycles, and leave holes of hundreds of megabytes."""
    gc.collect()
    trim_memory()
