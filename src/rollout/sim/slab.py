"""Memory that a worker shares with its parent: a large array is written there once, and its message says where.

Through a pipe, two cameras of 256 x 256 cost 80 us in the kernel alone; here, the 20 us of one copy (`rollout bench
transport`). The file has no name, so nothing is left of it when both processes are gone, and it cannot shrink, so that
no fault of a worker can take memory away from its parent.

A reply's arrays lie in one *slot*. The parent says with each command which slot is free: one whose arrays nobody
refers to any more, which Python's own reference counts tell. Who keeps an observation keeps it unchanged.
"""

from __future__ import annotations

import fcntl
import mmap
import os
import sys
from math import prod
from typing import Final

import numpy as np

from rollout.errors import ProtocolError
from rollout.sim.protocol import Shared
from rollout.values import SMALL, dtype_name, plain_dtype

__all__ = ["SlabReader", "SlabWriter", "open_slab"]

MOST_SLOTS: Final = 16  # whoever keeps more observations than that gets further ones through the pipe
MOST_BYTES: Final = 1 << 30
ALIGNMENT: Final = 64
UNSHARED: Final = 3  # references to an array in `SlabReader._held`, while it is looked at


def open_slab() -> int | None:
    """A descriptor of the memory, empty as yet; None where the system has none. Raises `OSError` out of descriptors."""
    if not hasattr(os, "memfd_create"):
        return None
    try:
        descriptor = os.memfd_create("rollout", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    except PermissionError:  # a sandbox
        return None
    fcntl.fcntl(descriptor, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK)
    return descriptor


class SlabWriter:
    """The child's end."""

    def __init__(self, descriptor: int | None) -> None:
        self._descriptor = descriptor
        self._memory: mmap.mmap | None = None
        self._areas: dict[int, tuple[int, int]] = {}  # by slot: from where, how many bytes
        self._size = self._used = 0  # of the file; of the slot's area
        self._slot: int | None = None

    def begin(self, slot: int | None) -> None:
        """What `put` gets from now on belongs to the reply for which `slot` is free."""
        self._slot, self._used = slot, 0

    def put(self, array: np.ndarray) -> Shared | None:
        """Copy `array` in; None where it is small or there is no room for it, so that it must be sent.

        Raises `TypeError` for dtypes that hold Python objects or have fields.
        """
        if array.nbytes <= SMALL or self._slot is None or self._descriptor is None:
            return None
        name = dtype_name(array.dtype)
        place = self._place(array.nbytes)
        if place is None or self._memory is None:
            return None
        np.ndarray(array.shape, array.dtype, self._memory, place)[...] = array
        return Shared(name, array.shape, place)

    def _place(self, n_bytes: int) -> int | None:
        assert self._slot is not None
        start, capacity = self._areas.get(self._slot, (0, 0))
        if self._used + n_bytes > capacity:
            # What this reply has in the old area stays there; the next one finds room for all of it in the new.
            capacity = _aligned(max(self._used + n_bytes, capacity))
            if not self._grow(capacity):
                return None
            start, self._used = self._size - capacity, 0
            self._areas[self._slot] = start, capacity
        place = start + self._used
        self._used += _aligned(n_bytes)
        return place

    def _grow(self, n_bytes: int) -> bool:
        size = self._size + n_bytes
        if size > MOST_BYTES:
            return False
        assert self._descriptor is not None
        try:
            os.ftruncate(self._descriptor, size)
            self._memory = mmap.mmap(self._descriptor, size)
        except (OSError, ValueError):  # no memory, or a simulator closed what it does not own
            self._descriptor = None
            return False
        self._size = size
        return True


class SlabReader:
    """The parent's end. Owns the descriptor."""

    def __init__(self, descriptor: int | None) -> None:
        self._descriptor = descriptor
        self._memory: mmap.mmap | None = None
        self._size = 0  # of what is mapped
        self._held: list[list[np.ndarray]] = [[]]  # by slot: the memory of the arrays that were read from it
        self._slot = 0  # of the next reply, or of the last

    def free_slot(self) -> int | None:
        """The slot for the next reply; None where every one is referred to."""
        if not self._held[0]:  # always, where observations are small
            self._slot = 0
            return 0
        for slot, held in enumerate(self._held):
            if all(sys.getrefcount(memory) <= UNSHARED for memory in held):
                held.clear()
                self._slot = slot
                return slot
        if len(self._held) == MOST_SLOTS:
            return None
        self._held.append([])
        self._slot = len(self._held) - 1
        return self._slot

    def array(self, shared: Shared) -> np.ndarray:
        """The array, writable and without a copy. Raises `ProtocolError` for one that cannot be there."""
        try:
            dtype = plain_dtype(shared.dtype)
            if min(shared.shape, default=1) < 1 or shared.offset < 0:
                raise ValueError("not a place for an array")
            n_bytes = dtype.itemsize * prod(shared.shape)
            memory = np.frombuffer(self._mapped(shared.offset + n_bytes), np.uint8, n_bytes, shared.offset)
            array: np.ndarray = memory.view(dtype).reshape(shared.shape)
        except (TypeError, ValueError, OSError) as exc:
            what = f"{shared.dtype[:40]!r} {str(shared.shape)[:80]} at {shared.offset}"
            raise ProtocolError(f"bad shared array {what}: {exc}") from exc
        self._held[self._slot].append(memory)
        return array

    def close(self) -> None:
        """Close the descriptor; arrays that were read stay valid. Idempotent."""
        descriptor, self._descriptor = self._descriptor, None
        if descriptor is not None:
            os.close(descriptor)

    def _mapped(self, least: int) -> mmap.mmap:
        """The memory, if it has `least` bytes. Raises `ValueError` or `OSError`."""
        if self._memory is None or least > self._size:
            if self._descriptor is None:
                raise ValueError("the memory is closed")
            size = os.fstat(self._descriptor).st_size
            if not least <= size <= MOST_BYTES:
                raise ValueError(f"the memory has {size} bytes")
            self._memory, self._size = mmap.mmap(self._descriptor, size), size
        return self._memory


def _aligned(n_bytes: int) -> int:
    return -(-n_bytes // ALIGNMENT) * ALIGNMENT
