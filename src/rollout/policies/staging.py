"""Observations of many episodes → one batch of tensors on the policy's device.

Rows are written straight into buffers that are reused, pinned for CUDA; images travel as uint8, a quarter of their size
as floats, and become floats on the device.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any, Final

import numpy as np
import torch

from rollout.policies.base import PolicySpent

__all__ = ["Staging", "collate"]

TURNS: Final = 2  # sets of buffers on CUDA: one is filled while the other is copied
IMAGES: Final = "observation.images."


class Staging:
    """The buffers of one policy. Not thread-safe: one policy, one thread."""

    def __init__(self, device: torch.device, dtype: torch.dtype, spent: PolicySpent | None = None) -> None:
        """`dtype` is what floats become; `spent` is kept up to date where one is given."""
        self._device, self._dtype, self._spent = device, dtype, spent or PolicySpent()
        self._cuda = device.type == "cuda"
        self._slabs: dict[tuple[int, str], torch.Tensor] = {}
        self._turn = 0
        # Copies have a stream of their own, so that one block's run beside the forward of the block before it.
        self._stream: Any = torch.cuda.Stream(device) if self._cuda else None  # type: ignore[no-untyped-call]
        self._copied: list[Any] = [None] * TURNS  # by turn: the event after its last copy

    def collate(self, observations: Sequence[dict[str, Any]]) -> dict[str, Any]:
        """Batched tensors, with leading axis B: images (…, H, W, C) of uint8 as floats (…, C, H, W) in [0, 1], other
        floats in the policy's dtype, integers as they are; text and nested values as lists of B.

        Raises `ValueError` where shapes differ in the batch.
        """
        began = time.perf_counter()
        if self._cuda:
            self._turn = (self._turn + 1) % TURNS
            if self._copied[self._turn] is not None:
                self._copied[self._turn].synchronize()
        host = {key: self._fill(key, [each[key] for each in observations]) for key in observations[0]}
        filled = time.perf_counter()
        batch = self._on_device(host)
        ended = time.perf_counter()
        self._spent.collate += filled - began
        self._spent.copy += ended - filled
        return batch

    def _fill(self, key: str, values: list[Any]) -> Any:
        first = values[0]
        if not isinstance(first, np.ndarray):
            return values
        if self._cuda or _is_image(key, first):
            return self._staged(key, values)
        # As it is, or soon converted: small, and the module may keep what it gets.
        return torch.from_numpy(np.stack(values))

    def _staged(self, key: str, values: list[np.ndarray]) -> torch.Tensor:
        first = values[0]
        if any(value.shape != first.shape for value in values):  # else a row could be broadcast
            raise ValueError(f"{key} differs within a batch: {sorted({value.shape for value in values})}")
        slab = self._slab(key, len(values), torch.from_numpy(first))
        np.stack(values, out=slab.numpy())
        return slab

    def _slab(self, key: str, rows: int, like: torch.Tensor) -> torch.Tensor:
        """(rows, *shape of `like`) in the host's memory, reused: what the module gets is a copy of it."""
        slab = self._slabs.get((self._turn, key))
        if slab is None or slab.shape[1:] != like.shape or slab.dtype != like.dtype or len(slab) < rows:
            slab = torch.empty((rows, *like.shape), dtype=like.dtype, pin_memory=self._cuda)
            self._slabs[self._turn, key] = slab
        return slab[:rows]

    def _on_device(self, host: dict[str, Any]) -> dict[str, Any]:
        if not self._cuda:
            return {key: self._converted(key, value) for key, value in host.items()}
        with torch.cuda.stream(self._stream):
            moved = {
                key: value.to(self._device, non_blocking=True) if isinstance(value, torch.Tensor) else value
                for key, value in host.items()
            }
            self._copied[self._turn] = self._stream.record_event()
        current = torch.cuda.current_stream(self._device)
        current.wait_event(self._copied[self._turn])
        for value in moved.values():
            if isinstance(value, torch.Tensor):
                value.record_stream(current)  # else its memory could be given away while the forward reads it
        return {key: self._converted(key, value) for key, value in moved.items()}

    def _converted(self, key: str, value: Any) -> Any:
        if not isinstance(value, torch.Tensor):
            return value
        if key.startswith(IMAGES) and value.dtype == torch.uint8:
            return value.movedim(-1, -3).to(self._dtype) / 255
        return value.to(self._dtype) if value.is_floating_point() and not key.startswith(IMAGES) else value


def collate(
    observations: Sequence[dict[str, Any]], device: torch.device, dtype: torch.dtype
) -> dict[str, Any]:
    """Batch observations as modules get them (see `Staging.collate`), in buffers of their own."""
    return Staging(device, dtype).collate(observations)


def _is_image(key: str, value: np.ndarray) -> bool:
    return key.startswith(IMAGES) and value.dtype == np.uint8
