"""A quantity that was measured at some sizes, and what it is taken for in between and beyond."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping

from msgspec import Struct

__all__ = ["Curve"]


class Curve(Struct, frozen=True):
    """Straight lines through measured points: seconds of a forward by batch size, of a decision by simulators."""

    points: tuple[tuple[int, float], ...]  # (size, seconds), sizes rising

    @classmethod
    def of(cls, measured: Mapping[int, float]) -> Curve:
        """Through `measured`, seconds by size. It never falls: a larger batch that was quicker is noise."""
        points, highest = [], 0.0
        for size in sorted(measured):
            highest = max(highest, measured[size])
            points.append((size, highest))
        return cls(tuple(points))

    def times(self, factor: float) -> Curve:
        """The same, all of it so many times as long."""
        return Curve(tuple((size, factor * seconds) for size, seconds in self.points))

    def __call__(self, size: float) -> float:
        """Seconds at `size`; below the first point as there, beyond the last one as steep as the two before it, and
        in proportion where there is one alone, the most that a batch can cost."""
        points = self.points
        if size <= points[0][0]:
            return points[0][1]
        if size > points[-1][0] and len(points) == 1:
            return points[0][1] * size / points[0][0]
        at = min(bisect_left(points, size, key=lambda point: point[0]), len(points) - 1)
        (low, less), (high, more) = points[at - 1], points[at]
        return less + (more - less) * (size - low) / (high - low)
