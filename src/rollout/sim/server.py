"""The child's end: one command after another, one simulator at a time.

`Server.handle` is the whole of it, without I/O: `serve` puts pipes around it, and `--workers 0` calls it directly.
"""

from __future__ import annotations

import gc
import os
import sys
import time
from collections.abc import Mapping

from rollout.envs.base import Simulator
from rollout.envs.gl import choose_again
from rollout.envs.gymnasium_handover import adopt
from rollout.envs.registry import load_simulator
from rollout.envs.remarks import remarks
from rollout.envs.rendering import rendering
from rollout.errors import ProtocolError, ResultsError, UsageError
from rollout.resources import trim_memory
from rollout.sim.failures import failed
from rollout.sim.protocol import (
    Build,
    Built,
    Close,
    Closed,
    Command,
    Cost,
    Describe,
    Described,
    Failed,
    Release,
    Released,
    Reply,
    Reset,
    ResetDone,
    Run,
    Start,
    Started,
)
from rollout.sim.running import RunningEpisode
from rollout.sim.slab import SlabWriter
from rollout.sim.transport import BlockingConnection, Ends
from rollout.sim.video import current_umask
from rollout.types import SuiteInfo
from rollout.values import sendable

__all__ = ["Server", "serve"]


def serve(read: int, write: int, slab: int | None = None) -> None:
    """Answer commands from descriptor `read` on `write`, until `Close` or until the parent is gone.

    `slab` is that of the memory which both processes share.
    """
    connection, pid = BlockingConnection(Ends(read, write)), os.getpid()
    server = Server(slab=SlabWriter(slab))
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

    def __init__(self, *, inline: bool = False, slab: SlabWriter | None = None) -> None:
        """`inline`: in the parent's own process, where Ctrl-C is the user's, and an exit would be everybody's."""
        self._inline = inline
        self._slab = slab or SlabWriter(None)
        self._umask = current_umask()  # before any simulator can change it
        self._class: type[Simulator] | None = None
        self._options: Mapping[str, str] = {}
        self._simulator: Simulator | None = None
        self._task: tuple[str, int] | None = None  # (suite, task_id) of the simulator
        self._building = False
        self._episode: RunningEpisode | None = None

    def handle(self, command: Command) -> Reply:
        """Do what `command` says. Exceptions become `Failed`; exits and signals end a worker, as they should."""
        try:
            if isinstance(command, Run) and self._episode is not None:  # the hot path
                return self._episode.run(command)
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
        rendering.take()
        began, cpu_began = time.perf_counter(), time.process_time()
        spec, simulator = command.spec, self._simulator
        if simulator is None or self._task != spec.task_key:
            raise ProtocolError("a reset came before its simulator was built")
        observation = simulator.reset(spec, command.observe)
        self._episode = episode = RunningEpisode(simulator, command, self._slab, self._umask)
        packed = episode.pack(observation)  # before a picture is drawn, maybe into the same buffer
        render_s = episode.film()
        reset_s = time.perf_counter() - began - render_s
        return ResetDone(
            packed,
            reset_s,
            render_s,
            bool(getattr(simulator, "success_at_reset", False)),
            remarks.take(),
            Cost(time.process_time() - cpu_began, *rendering.take()),
        )

    def _build(self, suite: SuiteInfo, task_id: int) -> Built:
        self._close_simulator()  # never two alive: a scene may hold gigabytes
        _release_memory()
        began, cpu_began = time.perf_counter(), time.process_time()
        remarks.begin()
        self._building = True
        choose_again()  # what was imported before this process knew which back end it has
        simulator = self._adapter(suite, task_id, self._options)
        simulator.build()
        self._building = False
        _release_memory()
        self._simulator, self._task = simulator, (suite.suite, task_id)
        cost = Cost(time.process_time() - cpu_began, *rendering.take())
        return Built(simulator.info, time.perf_counter() - began, remarks.take(), cost)

    def _abandon_episode(self) -> None:
        episode, self._episode = self._episode, None
        if episode is not None:
            episode.abandon()

    def _close_simulator(self) -> None:
        self._abandon_episode()
        simulator, self._simulator, self._task = self._simulator, None, None
        if simulator is not None:
            simulator.close()


def _release_memory() -> None:
    """Give back what is not used: simulators are full of cycles, and leave holes of hundreds of megabytes."""
    gc.collect()
    trim_memory()
