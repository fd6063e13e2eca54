"""What the batcher calls in a server: the policy, for requests that may come from anywhere."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

from msgspec import Struct

from rollout.errors import PolicyError
from rollout.policies.base import Request

__all__ = ["Forwarded", "alike"]

Infer = Callable[[Sequence[Request]], Sequence[Any]]


class Forwarded(Struct, frozen=True):
    """What the policy gave for one request, or raised."""

    chunk: Any
    error: Exception | None
    infer_ms: float
    batch: int  # requests in the same forward


def alike(infer: Infer) -> Callable[[Sequence[Request]], list[Forwarded]]:
    """`infer`, called once for all requests of a batch whose observations have the same keys, shapes and dtypes.

    One evaluation renders 224x224 pictures and another 360x360: they share a server, and no batch. What a policy raises
    for one client's observations is that client's alone.
    """

    def forward(requests: Sequence[Request]) -> list[Forwarded]:
        groups: dict[Any, list[int]] = {}
        for index, request in enumerate(requests):
            groups.setdefault(_form(request), []).append(index)
        found: dict[int, Forwarded] = {}
        for indices in groups.values():
            asked = [requests[index] for index in indices]
            # A batch of one form may raise: the batcher asks for less where memory ran out.
            forwarded = _forward(infer, asked) if len(groups) == 1 else _guarded(infer, asked)
            found.update(zip(indices, forwarded, strict=True))
        return [found[index] for index in range(len(requests))]

    return forward


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


def _guarded(infer: Infer, requests: Sequence[Request]) -> list[Forwarded]:
    try:
        return _forward(infer, requests)
    except Exception as exc:
        return [Forwarded(None, exc, 0.0, len(requests))] * len(requests)
