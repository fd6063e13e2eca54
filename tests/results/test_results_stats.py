"""`rollout.results.stats`: the interval and the mean."""

from __future__ import annotations

import math
import sys

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rollout.results.stats import mean, wilson


# The first four are Newcombe's (1998, table I, method 3), the others follow from the formula in closed form.
@pytest.mark.parametrize(
    ("n_success", "n", "low", "high"),
    [
        (81, 263, 0.2553, 0.3662),
        (15, 148, 0.0624, 0.1605),
        (0, 20, 0.0, 0.1611),
        (1, 29, 0.0061, 0.1718),
        (5, 10, 0.2366, 0.7634),
        (10, 10, 0.7225, 1.0),
    ],
)
def test_wilson_gives_the_published_intervals(n_success: int, n: int, low: float, high: float) -> None:
    assert wilson(n_success, n) == pytest.approx((low, high), abs=5e-5)


def test_wilson_has_no_interval_without_episodes() -> None:
    assert wilson(0, 0) is None


def test_wilson_is_exact_at_its_ends() -> None:
    z2 = 1.959963984540054**2
    none, every = wilson(0, 7), wilson(7, 7)
    assert none is not None
    assert every is not None
    assert none[0] == 0.0
    assert none[1] == pytest.approx(z2 / (7 + z2), rel=1e-12)
    assert every[0] == pytest.approx(7 / (7 + z2), rel=1e-12)
    assert every[1] == 1.0


def test_a_higher_confidence_widens_the_interval() -> None:
    at_90, at_99 = wilson(3, 10, 0.90), wilson(3, 10, 0.99)
    assert at_90 is not None
    assert at_99 is not None
    assert at_99[0] < at_90[0] < 0.3 < at_90[1] < at_99[1]


@settings(deadline=None)
@given(st.integers(0, 5000), st.integers(0, 5000))
def test_wilson_holds_the_rate_and_mirrors_failures(n_success: int, n_failure: int) -> None:
    n = n_success + n_failure
    interval, mirrored = wilson(n_success, n), wilson(n_failure, n)
    if interval is None or mirrored is None:
        assert n == 0
        return
    assert 0.0 <= interval[0] <= n_success / n <= interval[1] <= 1.0
    assert interval == pytest.approx((1 - mirrored[1], 1 - mirrored[0]), abs=1e-12)


def test_the_mean_skips_what_is_missing_or_not_finite() -> None:
    assert mean([1.0, None, math.nan, math.inf, -math.inf, 2.0]) == 1.5
    assert mean([None, math.nan]) is None
    assert mean([]) is None


def test_the_mean_counts_booleans_and_integers() -> None:
    assert mean([True, False, None, True, True]) == 0.75


def test_the_mean_of_huge_numbers_is_finite() -> None:
    assert mean([1.5e308, 1.5e308, 1.5e308]) == 1.5e308
    assert mean([sys.float_info.max] * 3) == sys.float_info.max


@settings(deadline=None)
@given(st.lists(st.floats(allow_nan=False, allow_infinity=False), min_size=1), st.randoms())
def test_the_mean_does_not_depend_on_the_order(values: list[float], random: object) -> None:
    shuffled = list(values)
    random.shuffle(shuffled)  # type: ignore[attr-defined]
    assert mean(shuffled) == mean(values)
