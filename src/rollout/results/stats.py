"""The two statistics that a result reports: an interval around a rate, and a mean."""

from __future__ import annotations

import statistics
import sys
from collections.abc import Iterable
from math import fsum, isfinite, sqrt

__all__ = ["mean", "wilson"]


def wilson(n_success: int, n: int, confidence: float = 0.95) -> tuple[float, float] | None:
    """The Wilson score interval `(low, high)` around `n_success / n`, within [0, 1]; None where `n` is 0.

    Two-sided, without continuity correction (E. B. Wilson, 1927; R. G. Newcombe, 1998, method 3). It stays
    inside [0, 1] and is not empty at 0 or `n` successes, where the normal approximation claims certainty.
    """
    assert 0 <= n_success <= n, f"{n_success} of {n}"
    if n == 0:
        return None
    z = statistics.NormalDist().inv_cdf(0.5 + confidence / 2)
    rate = n_success / n
    centre = rate + z * z / (2 * n)
    half = z * sqrt(rate * (1 - rate) / n + z * z / (4 * n * n))
    scale = 1 + z * z / n
    # Exact at the ends, where rounding would leave 1e-17 or 0.9999999999999999.
    low = 0.0 if n_success == 0 else (centre - half) / scale
    high = 1.0 if n_success == n else (centre + half) / scale
    return low, high


def mean(values: Iterable[float | None]) -> float | None:
    """The mean of the finite `values`, the same in whatever order they come; None where there are none."""
    finite = [float(value) for value in values if value is not None and isfinite(value)]
    if not finite:
        return None
    if max(map(abs, finite)) > sys.float_info.max / len(finite):  # the sum may be out of range
        return statistics.mean(finite)
    return fsum(finite) / len(finite)
