"""What the batcher calls in a server: the policy, for requests that may come from anywhere."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

from msgspec import Struct

from rollout.engine.forward import Forward
from rollout.engine.meant import MEANT
from rollout.errors import PolicyError
from rollout.policies.base import Request

__all__ = ["Alike", "Forwarded"]

Infer = Callable[[Sequence[Request]], Sequence[Any]]


class Forwarded(Struct, frozen=True):
    """What the policy gave for one request, or raised."""

    chunk: Any
    error: BaseException | None
    infer_ms: float
    batch: int  # requests in the same forward


class Alike:
    """`infer`, called once for all requests of a batch whose observations have the same keys, shapes and dtypes.

    One evaluation renders 224x224 pictures and another 360x360: they share a server, and no batch. What a policy raises
    for one client's observations is that client's alone.
    """

    def __init__(self, infer: Infer, note: Callable[[str], None] = lambda message: None) -> None:
        """`note` is told what a user should know."""
        self._infer, self._note = infer, note
        self._fits: int | None = None  # requests of one form, where memory ran out

    def __call__(self, requests: Sequence[Request]) -> list[Forwarded]:
        groups: dict[Any, list[int]] = {}
        for index, request in enumerate(requests):
            groups.setdefault(_form(request), []).append(index)
        if len(groups) == 1:  # it may raise: the batcher asks for less where memory ran out
            return _forward(self._infer, requests)
        found: dict[int, Forwarded] = {}
        for indices in groups.values():
            for part in self._parts(indices):
                found.update(zip(part, self._guarded([requests[index] for index in part]), strict=True))
        return [found[index] for index in range(len(requests))]

    def _parts(self, indices: list[int]) -> list[list[int]]:
        most = self._fits or len(indices)
        return [indices[start : start + most] for start in range(0, len(indices), most)]

    def _guarded(self, requests: Sequence[Request]) -> list[Forwarded]:
        """In smaller forwards where memory runs out: here, as the batcher would ask the other forms again too."""
        call = Forward(self._infer)(requests)
        if call.fits is not None and (self._fits is None or call.fits < self._fits):
            self._fits = call.fits
            self._note(f"the policy ran out of memory: from now on at most {call.fits} decisions of one form")
        if isinstance(call.error, MEANT):
            raise call.error
        if call.error is not None:
            return [Forwarded(None, call.error, 0.0, len(requests))] * len(requests)
        sizes = [(size, 1e3 * seconds) for size, seconds in call.forwards for _ in range(size)]
        return [
            Forwarded(chunk, None, milliseconds, size)
            for chunk, (size, milliseconds) in zip(call.chunks, sizes, strict=True)
        ]


def _form(request: Request) -> tuple[Any, ...]:
    return tuple(
        (key, getattr(value, "shape", None), str(getattr(value, "dtype", "")))
        for key, value in sorted(request.observation.items())
    )


def _forward(infer: Infer, requests: Sequence[Request]) -> list[Forwarded]:
    began = time.perf_counter()
    chunks = infer(requests)
    if len(chunks) != len(requests):
        raise PolicyError(f"the policy returned {len(chunks)} action chunks for {len(requests)} requests")
    milliseconds = 1e3 * (time.perf_counter() - began)
    return [Forwarded(chunk, None, milliseconds, len(requests)) for chunk in chunks]
