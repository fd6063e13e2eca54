"""Temporal ensembling against its definition."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rollout.engine.ensemble import Ensemble


def by_definition(chunks: list[np.ndarray], step: int, decay: float) -> np.ndarray:
    """ACT's: of all predictions for `step`, oldest first, the mean with weights exp(-decay * i)."""
    told = [
        chunk[step - start] for start, chunk in enumerate(chunks[: step + 1]) if step - start < len(chunk)
    ]
    weights = np.exp(-decay * np.arange(len(told)))
    return np.einsum("i,i...->...", weights / weights.sum(), np.stack(told))


@given(
    sizes=st.lists(st.integers(1, 6), min_size=1, max_size=12),
    decay=st.floats(-0.5, 2.0),
    shape=st.sampled_from([(), (3,), (2, 2)]),
)
def test_every_action_is_the_weighted_mean_of_all_that_was_said_of_its_step(
    sizes: list[int], decay: float, shape: tuple[int, ...]
) -> None:
    rng = np.random.default_rng(len(sizes))
    chunks = [rng.standard_normal((size, *shape)).astype(np.float32) for size in sizes]
    ensemble = Ensemble(decay)
    for step, chunk in enumerate(chunks):
        action = ensemble.add(chunk)
        assert action.shape == (1, *shape)
        np.testing.assert_allclose(action[0], by_definition(chunks, step, decay), rtol=0, atol=1e-12)


def test_the_oldest_prediction_weighs_most() -> None:
    ensemble = Ensemble(1.0)
    ensemble.add(np.array([0.0, 0.0]))
    [action] = ensemble.add(np.array([1.0, 1.0]))
    assert action == pytest.approx(np.exp(-1) / (1 + np.exp(-1)))


@pytest.mark.parametrize("decay", [-10.0, 10.0])
def test_a_steep_decay_leaves_one_prediction_and_no_overflow(decay: float) -> None:
    ensemble = Ensemble(decay)
    for step in range(300):
        [action] = ensemble.add(np.full(100, float(step)))
    assert action == pytest.approx(299.0 if decay < 0 else 200.0, abs=1e-3)


def test_whole_numbers_have_no_mean() -> None:
    with pytest.raises(ValueError, match="no mean"):
        Ensemble(0.01).add(np.array([1, 2]))
