"""The least time that the batching workload can take, and what dispatch rules reach if only the work takes time."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from heapq import heappop, heappush

from benchmarks.batching_work import Cores, Curve, Drawn

__all__ = ["Demand", "best_rule", "demand", "simulated_s"]


@dataclass(frozen=True)
class Demand:
    """What has to be done in whatever order, and so the bound."""

    decisions: int
    cores_s: float  # W_cpu / cores
    policy_s: float  # W_policy: see `demand`
    policy_full_s: float  # W_policy if every batch could be of all N simulators: D t(N) / N
    longest_s: float  # L_max: the longest episode, alone

    @property
    def bound_s(self) -> float:
        """No order of the work takes less."""
        return max(self.cores_s, self.policy_s, self.longest_s)

    @property
    def full_bound_s(self) -> float:
        """The bound with B* = N: as if a simulator could step while it waits for its answer."""
        return max(self.cores_s, self.policy_full_s, self.longest_s)


def demand(episodes: Sequence[Drawn], curve: Curve, cores: int, simulators: int) -> Demand:
    """The parts of the bound for D decisions of N simulators.

    W_policy: where two batches in a row have more than N members together, some simulator is in both, and between them
    the policy idles while that one steps, for at least the shortest chunk, c. Of all ways to cut D decisions into
    batches the cheapest costs b D + min(a (2 D / N - 1), a D / N + c (D / N - 1)). Where c >= a that is D t(B*) / B*
    with B* = N / 2, less one a: one half of the simulators is in the forward while the other half steps.
    """
    decisions = sum(len(each.chunks_s) for each in episodes)
    rounds, shortest_s = decisions / simulators, min(min(each.chunks_s) for each in episodes)
    halves_s = curve.a_s * max(rounds, 2 * rounds - 1)
    all_at_once_s = curve.a_s * rounds + shortest_s * max(0.0, rounds - 1)
    return Demand(
        decisions=decisions,
        cores_s=sum(each.total_s for each in episodes) / cores,
        policy_s=curve.b_s * decisions + min(halves_s, all_at_once_s),
        policy_full_s=curve(simulators) * rounds,
        longest_s=max(each.total_s + len(each.chunks_s) * curve(1) for each in episodes),
    )


def simulated_s(
    episodes: Sequence[Drawn], curve: Curve, cores: int, simulators: int, fewest: int = 1
) -> float:
    """Seconds until all is done, where nothing but the work takes time.

    The free policy takes all that wait once `fewest` do, or once nobody else can come; with 1 that is the greedy rule.
    """
    todo, on_cores = deque(episodes), Cores(cores)
    # Each simulator is the chunks of its episode that are still to come.
    stepping: list[tuple[float, int, deque[float]]] = []  # until when, and order
    waiting: list[deque[float]] = []
    in_forward: list[deque[float]] = []
    now, forward_ends, order = 0.0, math.inf, 0

    def step(work_s: float, to_come: deque[float]) -> None:
        nonlocal order
        order += 1
        heappush(stepping, (on_cores.end_of(work_s, now), order, to_come))

    def begin() -> None:
        if todo:
            episode = todo.popleft()
            step(episode.reset_s, deque(episode.chunks_s))

    for _ in range(simulators):
        begin()
    while stepping or in_forward:
        now = min(forward_ends, stepping[0][0] if stepping else math.inf)
        if now == forward_ends:
            for to_come in in_forward:
                step(to_come.popleft(), to_come)
            in_forward, forward_ends = [], math.inf
        while stepping and stepping[0][0] <= now:
            *_, to_come = heappop(stepping)
            if to_come:
                waiting.append(to_come)
            else:
                begin()
        if waiting and not in_forward and (len(waiting) >= fewest or not stepping):
            in_forward, waiting = waiting, []
            forward_ends = now + curve(len(in_forward))
    return now


def best_rule(episodes: Sequence[Drawn], curve: Curve, cores: int, simulators: int) -> tuple[float, int]:
    """The least `simulated_s` over all values of `fewest`, and that value."""
    rules = range(1, simulators + 1)
    return min((simulated_s(episodes, curve, cores, simulators, fewest), fewest) for fewest in rules)
