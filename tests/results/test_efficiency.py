"""The bound, what binds, and the shares: by the numbers, and against runs that a few lines simulate."""

from __future__ import annotations

from collections import deque
from unittest.mock import patch

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rollout.display.base import Counters, Latencies, WorkerState
from rollout.display.load import best_batch, efficiency
from rollout.engine.ledger import Ledger
from rollout.results.efficiency import Limit, Load, bound_of, limit_of
from rollout.sim.protocol import Built, Cost, ResetDone


def load(**changes: float) -> Load:
    """Ten seconds on 8 cores with 16 workers; what is not told is nothing."""
    nothing = {"busy_s": 0.0, "cpu_s": 0.0, "policy_busy_s": 0.0, "policy_cpu_s": 0.0, "least_wait_s": 0.0}
    told = {"wall_s": 10.0, "cores": 8, "workers": 16, **nothing, **changes}
    return Load(**{"policy_s": told["policy_busy_s"], **told})  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("spent", "limit"),
    [
        # The policy never rests: faster simulators would only wait longer.
        ({"policy_busy_s": 9.5, "busy_s": 150, "cpu_s": 75}, Limit.POLICY),
        # Half of the workers wait, and still all 8 cores simulate.
        ({"policy_busy_s": 6, "busy_s": 80, "cpu_s": 78}, Limit.SIMULATORS),
        # Most workers wait, and most cores rest.
        ({"policy_busy_s": 6, "busy_s": 20, "cpu_s": 20}, Limit.POLICY),
        # Simulators that sleep: cores and policy rest, and no worker does.
        ({"policy_busy_s": 1, "busy_s": 155, "cpu_s": 3, "kept_s": 20}, Limit.WORKERS),
        # One worker that computes takes turns with the policy, on 8 cores.
        ({"workers": 1, "policy_busy_s": 5, "busy_s": 5, "cpu_s": 5, "least_wait_s": 5}, Limit.WORKERS),
        # The same on one core with nothing to wait for: a second worker would gain nothing.
        ({"workers": 1, "cores": 1, "busy_s": 9.9, "cpu_s": 9.5}, Limit.SIMULATORS),
        # Workers that wait for cores which somebody else's work fills do not sleep.
        ({"busy_s": 155, "cpu_s": 30, "kept_s": 124}, Limit.SIMULATORS),
        # A policy on the same cores takes more of them than the simulators.
        ({"policy_busy_s": 6, "policy_cpu_s": 48, "busy_s": 30, "cpu_s": 30}, Limit.POLICY),
        ({"busy_s": 40, "cpu_s": 30, "longest_s": 9, "longest_cpu_s": 8.5}, Limit.LONGEST),
        ({"busy_s": 80, "cpu_s": 60, "setting_up": 0.6}, Limit.START_UP),
        ({"busy_s": 20, "cpu_s": 20, "start_up_s": 6}, Limit.START_UP),
    ],
)
def test_what_binds_is_what_more_of_would_make_it_faster(spent: dict[str, float], limit: Limit) -> None:
    assert limit_of(load(**spent)) is limit


def test_the_bound_is_the_start_and_the_largest_of_its_terms() -> None:
    bound = bound_of(
        load(start_up_s=0.5, policy_s=3.0, policy_busy_s=6.0, policy_cpu_s=4.0, cpu_s=38.0, busy_s=40.0),
        4,
        {},
    )
    # Half of the policy's CPU time would do, in the best batches.
    assert (bound.cores_s, bound.policy_s, bound.longest_episode_s) == (5.0, 3.0, 0.0)
    assert bound.seconds == 5.5


def test_the_best_batch_is_the_knee_and_a_warm_up_is_none_of_it() -> None:
    latencies = Latencies()
    for size, seconds in ((1, (9.0, 0.1, 0.1)), (4, (0.2, 0.2)), (8, (0.8,))):
        for each in seconds:
            latencies.note(size, each)
    assert best_batch(latencies) == (4, 0.05)
    assert latencies.quickest_s == 0.1
    assert best_batch(Latencies()) == (None, 0.0)


class Machine:
    """Workers share `cores` evenly and ask one policy, which takes what waits: a run in virtual time."""

    def __init__(self, cores: int, workers: int, policy: tuple[float, float], *, on_cores: bool) -> None:
        self.counters = Counters(workers=[WorkerState.IDLE] * workers, began_s=1.0)
        self.now = 0.0
        self._cores, self._policy, self._on_cores = cores, policy, on_cores
        self._computing: dict[int, float] = {}  # CPU seconds left, by worker; -1 is the policy
        self._sleeping: dict[int, float] = {}  # until when
        self._waiting: deque[int] = deque()
        self._batch: list[int] = []
        self._batch_s = 0.0

    def run(self, episodes: list[list[tuple[float, float]]], build: float) -> float:
        """Episodes are chunks of CPU time and sleep; the first is the reset. Returns the wall time."""
        todo, workers = deque(episodes), {}
        for index in range(len(self.counters.workers)):
            if todo:
                workers[index] = self._worker(index, todo, build)
                next(workers[index])
        while self._computing or self._sleeping or self._waiting or self._batch:
            self._dispatch()
            for index in self._advance():
                next(workers[index], None)
        return self.now

    def _worker(self, index, todo, build):  # type: ignore[no-untyped-def]
        ready = None
        while todo:
            (cpu, sleep), *chunks = todo.popleft()
            ledger = Ledger(self.counters)
            if ready is None:
                ready = yield from self._take(index, build, 0.0)
                ledger.built(Built(None, ready, (), Cost(build)))  # type: ignore[arg-type]
            ledger.was_reset(
                ResetDone({}, (yield from self._take(index, cpu, sleep)), 0.0, False, (), Cost(cpu))
            )
            run_s = wait_s = 0.0
            for cpu, sleep in chunks:
                asked = self.now
                self._waiting.append(index)
                yield
                wait_s += self.now - asked
                took = yield from self._take(index, cpu, sleep)
                run_s += took
                self.counters.sim_busy_s += took
            ledger.ended(run_s, Cost(sum(cpu for cpu, _ in chunks)), len(chunks))
            ledger.left(run_s, wait_s)
            self.counters.done += 1

    def _take(self, index, cpu, sleep):  # type: ignore[no-untyped-def]
        began = self.now
        self._computing[index] = cpu
        yield
        self._sleeping[index] = self.now + sleep
        yield
        return self.now - began

    def _dispatch(self) -> None:
        if self._waiting and not self._batch:
            self._batch = list(self._waiting)
            self._waiting.clear()
            fixed, each = self._policy
            self._batch_s, self._began = fixed + each * len(self._batch), self.now
            if self._on_cores:
                self._computing[-1] = self._batch_s
            else:
                self._sleeping[-1] = self.now + self._batch_s

    def _advance(self) -> list[int]:
        """To the next event: whose it is."""
        rate = min(1.0, self._cores / max(1, len(self._computing)))
        ends = {index: self.now + left / rate for index, left in self._computing.items()} | self._sleeping
        first = min(ends, key=lambda index: ends[index])
        passed = ends[first] - self.now
        self._computing = {index: left - passed * rate for index, left in self._computing.items()}
        self.now = ends[first]
        self._computing.pop(first, None)
        self._sleeping.pop(first, None)
        if first != -1:
            return [first]
        counters, took, batch = self.counters, self.now - self._began, self._batch
        self._batch = []
        counters.latencies.note(len(batch), took)
        counters.decisions += len(batch)
        counters.policy_busy_s += took
        counters.policy_cpu_s += self._batch_s if self._on_cores else 0.0
        return batch


SECONDS = st.sampled_from([0.0, 0.01, 0.1, 0.5, 1.0, 3.0, 20.0])
EPISODES = st.lists(st.lists(st.tuples(SECONDS, SECONDS), min_size=2, max_size=5), min_size=1, max_size=12)


@settings(max_examples=300, deadline=None)
@given(
    episodes=EPISODES,
    cores=st.integers(1, 4),
    workers=st.integers(1, 6),
    policy=st.tuples(st.sampled_from([0.01, 0.3, 2.0]), st.sampled_from([0.0, 0.01, 0.5])),
    on_cores=st.booleans(),
    build=SECONDS,
    start_up_s=SECONDS,
)
def test_no_simulated_run_is_quicker_than_its_bound_and_its_shares_add_up(
    episodes: list[list[tuple[float, float]]],
    cores: int,
    workers: int,
    policy: tuple[float, float],
    on_cores: bool,
    build: float,
    start_up_s: float,
) -> None:
    machine = Machine(cores, workers, policy, on_cores=on_cores)
    wall_s = start_up_s + machine.run(episodes, build)
    with patch("rollout.display.load.usable_cores", return_value=cores):
        found = efficiency(machine.counters, wall_s, start_up_s)
    assert found.bound is not None
    assert found.eta is not None
    assert found.shares is not None
    assert 0 < found.eta <= 1 + 1e-6
    assert found.bound.workers_s <= wall_s - start_up_s + 1e-6
    shares = msgspec.structs.asdict(found.shares)
    assert all(0 <= share <= 1 for share in shares.values())
    assert sum(shares.values()) - found.shares.policy == pytest.approx(1.0)


def test_a_run_that_wastes_nothing_has_an_eta_of_one() -> None:
    machine = Machine(2, 4, (1e-4, 0.0), on_cores=False)
    wall_s = machine.run([[(0.1, 0.0)] + [(0.1, 0.0)] * 20 for _ in range(40)], 0.0)
    with patch("rollout.display.load.usable_cores", return_value=2):
        found = efficiency(machine.counters, wall_s, 0.0)
    assert found.bound is not None
    assert found.bound.by is Limit.SIMULATORS
    assert found.eta == pytest.approx(1.0, abs=0.01)
