"""What the batching workload gives to every contender: episodes of drawn lengths and times, a cost curve, cores."""

from __future__ import annotations

import math
import random
from dataclasses import dataclass
from heapq import heapify, heapreplace

__all__ = ["MOST", "Cores", "Curve", "Drawn", "draw"]

# Seconds of LIBERO at 256 x 256 with two cameras in software rendering, as measured on one core of ours.
STEP_S, RENDER_S, RESET_S = 0.0093, 0.070, 0.03
SETTLE_STEPS, CAMERAS, CHUNK = 10, 2, 10
SPREAD = 0.4  # sigma of every log-normal time
# In decisions of ten steps. 28: libero_spatial's horizon of 280 steps.
MEAN_LENGTH, MOST, LENGTHS_SPREAD = 12, 28, 0.5


@dataclass(frozen=True)
class Drawn:
    """One episode's seconds on a core: its reset with the first observation, then each chunk with the next one."""

    reset_s: float
    chunks_s: tuple[float, ...]  # one a decision

    @property
    def total_s(self) -> float:
        return self.reset_s + sum(self.chunks_s)


@dataclass(frozen=True)
class Curve:
    """What a forward takes: t(B) = a + b B seconds."""

    a_s: float
    b_s: float

    def __call__(self, batch: int) -> float:
        return self.a_s + self.b_s * batch

    def __str__(self) -> str:
        return f"{1e3 * self.a_s:.4g} + {1e3 * self.b_s:.4g} B"

    def faster(self, speed: float) -> Curve:
        """The same on a clock that runs `speed` times as fast."""
        return Curve(self.a_s / speed, self.b_s / speed)


def draw(episodes: int, speed: float = 1.0, seed: int = 0) -> tuple[Drawn, ...]:
    """`episodes` of them, every time divided by `speed`; the same for the same arguments."""
    rng = random.Random(seed)

    def varied(mean_s: float, times: int) -> float:
        return sum(mean_s * _log_normal(rng, SPREAD) for _ in range(times)) / speed

    def observed() -> float:
        return varied(RENDER_S, CAMERAS)

    def episode() -> Drawn:
        length = min(MOST, max(2, round(MEAN_LENGTH * _log_normal(rng, LENGTHS_SPREAD))))
        reset_s = varied(RESET_S, 1) + varied(STEP_S, SETTLE_STEPS) + observed()
        seen = [varied(STEP_S, CHUNK) + observed() for _ in range(length - 1)]
        return Drawn(reset_s, (*seen, varied(STEP_S, CHUNK)))  # nobody looks at an episode's end

    return tuple(episode() for _ in range(episodes))


def _log_normal(rng: random.Random, sigma: float) -> float:
    """Its mean is 1."""
    return math.exp(rng.gauss(-sigma * sigma / 2, sigma))


class Cores:
    """Serve whoever came first, as a semaphore would, but say at once when a piece of work will end.

    So a core goes on with the next piece at the very end of the last: it does not idle while a timer is late.
    """

    def __init__(self, count: int, now: float = 0.0) -> None:
        self._free = [now] * count
        heapify(self._free)

    def end_of(self, work_s: float, now: float) -> float:
        """When the work that is there at `now` ends. To be called in the order of `now`."""
        end = max(now, self._free[0]) + work_s
        heapreplace(self._free, end)
        return end
