"""Memory that a worker shares with its parent: a large array is written there once, and its message says where.

Through a pipe, two cameras of 256 x 256 cost 80 us in the kernel alone; here, the 20 us of one copy (`rollout bench
transport`). The file has no name, so nothing is left of it when both processes are gone, and its size is sealed, so
that no fault of a worker can take memory away from its parent. It has a gibibyte of addresses, and memory for what was
written alone.

A reply's arrays lie in one *slot*. The parent says with each command which slot is free: one whose arrays nobody
refers to any more, which Python's own reference counts tell. Who keeps an observation keeps it unchanged; who forks a
process and drops it does not keep it for the child, which shares the memory, too.
"""

from __future__ import annotations

import errno
import fcntl
import mmap
import os
import sys
from collections.abc import Iterable
from contextlib import suppress
from math import prod
from typing import Final

import numpy as np

from rollout.errors import ProtocolError
from rollout.sim.protocol import Shared
from rollout.values import SMALL, dtype_name, plain_dtype

__all__ = ["SlabReader", "SlabWriter", "open_slab"]

MOST_SLOTS: Final = 16  # whoever keeps more observations than that gets further ones through the pipe
SIZE: Final = 1 << 30
ALIGNMENT: Final = 64


def open_slab() -> int | None:
    """A descriptor of the memory; None where the system gives none. Raises `OSError` where no descriptor is left."""
    if not hasattr(os, "memfd_create"):
        return None
    try:
        descriptor = os.memfd_create("rollout", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    except OSError as exc:
        if exc.errno in (errno.EMFILE, errno.ENFILE):
            raise
        return None  # a sandbox, an old kernel
    try:
        os.ftruncate(descriptor, SIZE)
        fcntl.fcntl(descriptor, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW)
    except OSError:
        os.close(descriptor)
        return None
    return descriptor


def _most_references(arrays: Iterable[np.ndarray]) -> int:
    """To any of them, as it is looked at here."""
    return max((sys.getrefcount(array) for array in arrays), default=0)


def _references_of_the_unshared() -> int:
    """What `_most_references` says of arrays that nobody looks at; less than that of any where a view makes no
    difference, as in an interpreter that counts otherwise."""
    held = [np.empty(2, np.uint8)]
    alone = _most_references(held)
    view = held[0][1:]
    return alone if _most_references(held) > alone and view.base is held[0] else -1


UNSHARED: Final = _references_of_the_unshared()


class SlabWriter:
    """The child's end."""

    def __init__(self, descriptor: int | None) -> None:
        self._descriptor = descriptor
        self._memory: mmap.mmap | None = None
        self._areas: dict[int, tuple[int, int]] = {}  # by slot: from where, how many bytes
        self._given = self._used = 0  # bytes that belong to areas; bytes used of the present slot's
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
        if place is None:
            return None
        if self._memory is None:
            try:
                self._memory = mmap.mmap(self._descriptor, SIZE)
            except (OSError, ValueError):  # no addresses, or a simulator closed what it does not own
                self._descriptor = None
                return None
        np.ndarray(array.shape, array.dtype, self._memory, place)[...] = array
        return Shared(name, array.shape, place)

    def _place(self, n_bytes: int) -> int | None:
        assert self._slot is not None
        start, capacity = self._areas.get(self._slot, (0, 0))
        if self._used + n_bytes > capacity:
            # What this reply has in the old area stays there; the next one finds room for all of it in the new.
            start, capacity = self._given, _aligned(max(self._used + n_bytes, capacity))
            if start + capacity > SIZE:
                return None
            self._given, self._used = start + capacity, 0
            self._areas[self._slot] = start, capacity
        place = start + self._used
        self._used += _aligned(n_bytes)
        return place


class SlabReader:
    """The parent's end."""

    def __init__(self, descriptor: int | None) -> None:
        """The descriptor stays the caller's."""
        self._memory: mmap.mmap | None = None
        if descriptor is not None:
            with suppress(OSError, ValueError):  # no addresses for it: arrays are sent, then
                self._memory = mmap.mmap(descriptor, SIZE)
        self._held: list[list[np.ndarray]] = [[]]  # by slot: the memory of the arrays that were read from it
        self._slot = 0  # of the next reply, or of the last

    def free_slot(self) -> int | None:
        """The slot for the next reply; None where every one is referred to."""
        if self._memory is None:
            return None
        if not self._held[0]:  # always, where observations are small
            self._slot = 0
            return 0
        for slot, held in enumerate(self._held):
            if _most_references(held) <= UNSHARED:
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
            if self._memory is None:
                raise ValueError("no memory is shared")
            dtype = plain_dtype(shared.dtype)
            if min(shared.shape, default=1) < 1 or shared.offset < 0:
                raise ValueError("not a place for an array")
            n_bytes = dtype.itemsize * prod(shared.shape)
            memory = np.frombuffer(self._memory, np.uint8, n_bytes, shared.offset)
            array: np.ndarray = memory.view(dtype).reshape(shared.shape)
        except (TypeError, ValueError, OverflowError) as exc:
            what = f"{shared.dtype[:40]!r} {str(shared.shape)[:80]} at {shared.offset}"
            raise ProtocolError(f"bad shared array {what}: {exc}") from exc
        self._held[self._slot].append(memory)
        return array

    def close(self) -> None:
        """Let go of the memory; arrays that were read stay valid, and keep it. Idempotent."""
        self._memory, self._held = None, [[]]


def _aligned(n_bytes: int) -> int:
    return -(-n_bytes // ALIGNMENT) * ALIGNMENT
