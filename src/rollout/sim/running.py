"""An episode in progress, in the child: executes chunks, counts steps, films."""

from __future__ import annotations

import time
from array import array
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final

import numpy as np

from rollout.envs.base import Simulator
from rollout.envs.remarks import remark, remarks
from rollout.envs.rendering import rendering
from rollout.errors import ResultsError, UsageError
from rollout.sim.failures import message_of
from rollout.sim.protocol import Cost, Reset, Run, RunDone, WireObservation
from rollout.sim.slab import SlabWriter
from rollout.sim.video import VideoWriter
from rollout.types import Observation, VideoMode
from rollout.values import Array, pack, pack_array, unpack

__all__ = ["RunningEpisode"]

LONG_S: Final = 2e-4  # of a chunk around which the CPU's clock is worth reading: that takes 1.5 us


class RunningEpisode:
    """An episode in progress: executes chunks, counts steps, films."""

    def __init__(self, simulator: Simulator, command: Reset, slab: SlabWriter, umask: int) -> None:
        self._slab = slab
        slab.begin(command.slot)
        self._step, self._render = simulator.step, simulator.render
        self._horizon = command.spec.horizon
        self._n_observed = command.observe.n_obs_steps
        self._instruction = simulator.info.instruction
        self._dtype = np.dtype(
            getattr(simulator.info.action_space, "dtype", "f4")
        )  # of actions that are arrays
        self._keep = command.video.keep if command.video else VideoMode.ALL
        film = command.video
        self._video = VideoWriter(film.path, simulator.info.fps, umask=umask) if film else None
        self._steps = 0
        self._success: bool | None = None
        self._unreadable, self._long, self._cpu_s = False, True, 0.0

    def run(self, command: Run) -> RunDone:
        """Execute a chunk, or as much of it as the episode lasts."""
        began, cpu_began = time.perf_counter(), time.process_time() if self._long else 0.0
        self._slab.begin(command.slot)
        actions = command.actions
        chunk: np.ndarray | list[Any]
        if isinstance(actions, Array):  # which the parent has checked
            chunk = np.ndarray(actions.shape, self._dtype, actions.data).copy()
        else:
            chunk = [unpack(action) for action in actions.items]
        left = self._horizon - self._steps
        # No decision follows an episode's last step: nothing is rendered for it.
        step, first_observed = self._step, len(chunk) - self._n_observed if len(chunk) < left else left
        rewards: list[float] = []
        observations: list[WireObservation] = []
        render_s, ended = 0.0, False
        for index in range(len(chunk)):  # iterating over an array ends in an exception: 0.3 us
            done = step(chunk[index], index >= first_observed)
            rewards.append(done.reward)
            if done.success is not None:
                self._success = bool(done.success) or bool(self._success)
            if done.unreadable:
                self._unreadable = True
            out_of_time = len(rewards) >= left
            ended = done.terminated or done.truncated or out_of_time
            if (
                done.observation is not None and not ended
            ):  # first of all: it may be a buffer that `render` draws into
                observations.append(self.pack(done.observation))
            if self._video is not None:
                render_s += self.film()
            if ended:
                break
        self._steps += len(rewards)
        filmed = ended and self._finish_video()
        took = time.perf_counter() - began
        self._cpu_s += time.process_time() - cpu_began if self._long else min(took, LONG_S)
        self._long = took > LONG_S
        return RunDone(
            array("d", rewards).tobytes(),
            done.terminated,
            done.truncated or out_of_time,
            None if self._unreadable and not self._success else self._success,
            () if ended else tuple(observations),
            took - render_s,
            render_s,
            filmed,
            remarks.take(),
            Cost(self._cpu_s, *rendering.take()) if ended else None,
        )

    def pack(self, observation: Observation) -> WireObservation:
        """Describe every leaf, in memory of its own; the instruction only where it is not the task's own."""
        return {
            key: self._slab.put(value) or pack_array(value, copy=True)
            if type(value) is np.ndarray
            else pack(value)
            for key, value in observation.items()
            if key != "task" or value != self._instruction
        }

    def film(self) -> float:
        """Add the current frame to the video, if one was asked for. Returns the seconds that it took."""
        if self._video is None:
            return 0.0
        began = time.perf_counter()
        with self._no_matter(), rendering:
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
