"""One episode, from reset to end: decide, run, until it is over."""

from __future__ import annotations

import time
from collections.abc import Callable

from msgspec import Struct

from rollout.display.base import Counters, WorkerState
from rollout.engine.batcher import Batcher
from rollout.engine.builds import Builds
from rollout.engine.execution import Execution
from rollout.engine.ledger import Ledger
from rollout.engine.meant import MEANT
from rollout.engine.session import EpisodeSession
from rollout.errors import PolicyError, RolloutError
from rollout.policies.base import Policy
from rollout.sim.calls import Worker
from rollout.sim.protocol import Built, Cost, Reset
from rollout.types import EpisodeResult, EpisodeSpec, SuiteInfo, VideoRequest
from rollout.values import Value

__all__ = ["Attempt", "Measured", "run_episode"]


class Attempt(Struct, frozen=True, kw_only=True):
    """What one attempt at an episode needs to know."""

    spec: EpisodeSpec
    suite: SuiteInfo
    video: VideoRequest | None
    number: int  # 1 for the first attempt
    execution: Execution
    warn: Callable[[str], None] = lambda text: None  # told what a simulator remarks
    builds: Builds  # told what becomes of building


class Measured(Struct, frozen=True, kw_only=True):
    """An episode's record and what it did."""

    result: EpisodeResult
    actions: Value


async def run_episode(
    attempt: Attempt, worker: Worker, policy: Policy, batcher: Batcher, counters: Counters
) -> Measured:
    """Run the episode on `worker`. Raises what the worker or the policy raised."""
    states, index, clock = counters.workers, worker.index, time.perf_counter
    waiting, stepping = WorkerState.WAITING, WorkerState.STEPPING  # an enum's attribute costs a function call
    spec = attempt.spec
    builds = worker.task != spec.task_key
    states[index] = WorkerState.BUILDING if builds else WorkerState.RESETTING
    ledger, sim_s, render_s, wait_s = Ledger(counters), 0.0, 0.0, 0.0
    batcher.active += 1
    try:
        if builds:
            ledger.built(await _build(attempt, worker))
        states[index] = WorkerState.RESETTING
        observe = policy.spec.observation_request
        ready = await worker.reset(Reset(spec, observe, attempt.video))
        for text in ready.remarks:
            attempt.warn(text)
        ledger.was_reset(ready)
        session = _open(attempt, worker, policy)
        session.observe((ready.observation,))
        video = None
        while not session.ended:
            states[index] = waiting
            asked = clock()
            chunk = await batcher.decide(session.request())
            waited = clock() - asked
            if session.decisions == 1 and policy.spec.observation_request != observe:
                # The first decision showed that less is read. A reset is a function of the spec: the episode
                # starts where it was, without what nobody looks at.
                again = Reset(spec, policy.spec.observation_request, attempt.video)
                ledger.was_reset(await worker.reset(again))
            actions = session.chunk(chunk)
            states[index] = stepping
            done = await worker.run(actions)
            for text in done.remarks:
                attempt.warn(text)
            counters.steps += session.executed(done)
            wait_s += waited
            sim_s += done.sim_s
            render_s += done.render_s
            counters.sim_busy_s += done.sim_s + done.render_s
            if done.video and attempt.video is not None:
                video = (
                    attempt.video.path
                )  # the child says only that it is there: no path of its own gets here
        ledger.ended(sim_s + render_s, done.cost or Cost(), session.decisions)
    finally:
        batcher.active -= 1
        ledger.left(sim_s + render_s, wait_s)
    result = session.result(
        attempts=attempt.number,
        spent=ledger.spent(sim_s, render_s, wait_s),
        built=builds,
        video=video,
        success_at_reset=ready.success_at_reset,
    )
    return Measured(result=result, actions=session.actions)


async def _build(attempt: Attempt, worker: Worker) -> Built:
    key, built = attempt.spec.task_key, False
    attempt.builds.began(key)
    try:
        done = await worker.build(attempt.suite, attempt.spec.task_id)
        built = True
    finally:
        attempt.builds.ended(key, built=built)
    for text in done.remarks:
        attempt.warn(text)
    return done


def _open(attempt: Attempt, worker: Worker, policy: Policy) -> EpisodeSession:
    task = worker.info
    assert task is not None  # the reset delivered it
    try:
        session = policy.open_session(attempt.spec, task)
    except (RolloutError, *MEANT):
        raise
    except BaseException as exc:
        where = f"{attempt.spec.suite} {attempt.spec.task} episode {attempt.spec.episode}"
        raise PolicyError(
            f"the policy's open_session raised {type(exc).__name__}: {exc} (in {where})"
        ) from exc
    return EpisodeSession(
        attempt.spec,
        task,
        n_obs_steps=policy.spec.n_obs_steps,
        execution=attempt.execution,
        session=session,
        read_shared=worker.read_shared,
    )
