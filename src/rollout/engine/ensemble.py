"""Temporal ensembling: every step's action is the weighted mean of what all chunks so far say of it.

From ACT (Zhao et al., "Learning Fine-Grained Bimanual Manipulation with Low-Cost Hardware", 2023, algorithm 2): with
w_0 the weight of the oldest prediction, w_i = exp(-decay * i). A decay above 0 trusts older ones more; ACT uses 0.01.
"""

from __future__ import annotations

import numpy as np

__all__ = ["Ensemble"]


class Ensemble:
    """One episode's overlapping chunks."""

    def __init__(self, decay: float) -> None:
        self._decay = decay
        self._sums = np.zeros(
            (0,)
        )  # float64 (steps ahead, *action shape): weighted predictions, the next step's first
        self._weights = np.zeros((0,))  # (steps ahead,): the sums of their weights
        self._counts = np.zeros((0,), np.int64)  # (steps ahead,): how many chunks spoke of the step

    def add(self, chunk: np.ndarray) -> np.ndarray:
        """Take in the chunk (chunk_size, *action shape) that starts at this step, and return this step's action as
        (1, *action shape), float64. Raises `ValueError` for actions that have no mean."""
        if chunk.dtype.kind != "f":
            raise ValueError(f"{chunk.dtype} actions, which have no mean: temporal ensembling is for floats")
        self._lengthen(chunk)
        known = len(chunk)
        if self._decay < 0:  # relative to the newest weight, as the weights themselves would grow without end
            self._sums[:known] *= np.exp(self._decay)
            self._weights[:known] *= np.exp(self._decay)
        weights = np.exp(-max(0.0, self._decay) * self._counts[:known])
        self._sums[:known] += weights.reshape(-1, *[1] * (chunk.ndim - 1)) * chunk
        self._weights[:known] += weights
        self._counts[:known] += 1
        action: np.ndarray = self._sums[:1] / self._weights[0]
        self._sums, self._weights, self._counts = self._sums[1:], self._weights[1:], self._counts[1:]
        return action

    def _lengthen(self, chunk: np.ndarray) -> None:
        missing = max(0, len(chunk) - len(self._counts))
        shape = chunk.shape[1:]
        self._sums = np.concatenate([self._sums.reshape(-1, *shape), np.zeros((missing, *shape))])
        self._weights = np.concatenate([self._weights, np.zeros(missing)])
        self._counts = np.concatenate([self._counts, np.zeros(missing, np.int64)])
