"""The policy's side of a batch: call it, time it, blame it, and ask for less where its memory runs out."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Sequence, Sized
from threading import get_ident
from typing import Any

import numpy as np
from msgspec import Struct

from rollout.engine.meant import MEANT
from rollout.errors import PolicyError, RolloutError
from rollout.policies.base import Request

__all__ = ["Call", "Forward", "blame", "is_out_of_memory"]


class Call(Struct, kw_only=True):
    """What became of one batch. Times are `time.perf_counter()`'s, in seconds."""

    began: float
    ended: float = 0.0
    cpu_s: float = (
        0.0  # CPU time of this process meanwhile, without that of the thread that made the `Forward`
    )
    chunks: Sequence[Any] = ()
    error: BaseException | None = None
    forwards: list[tuple[int, float]] = []  # size and seconds of each, more than one where memory ran out
    fits: int | None = None  # how many requests fit into memory, where it ran out


class Forward:
    """`Forward(infer)(requests)` never raises: what the policy raised is in the `Call`."""

    def __init__(self, infer: Callable[[Sequence[Request]], Sequence[Any]], *, copies: bool = True) -> None:
        """`copies`: the next call may come before these chunks are used, and write into the same buffers."""
        self._infer, self._kept = infer, _copied if copies else _as_it_is
        self._maker, self._makers_clock = get_ident(), _clock_of_this_thread()

    def alone(self, request: Request) -> Any:
        """The chunk for one request, which nobody batches. Raises what the policy raises."""
        (chunk,) = self._checked([request])
        return chunk

    def __call__(self, requests: Sequence[Request]) -> Call:
        call = Call(began=time.perf_counter())
        cpu_began = self._cpu_s()
        try:
            call.chunks = self._chunks(requests, call)
        except BaseException as exc:
            call.error = exc
        call.ended = time.perf_counter()
        call.cpu_s = max(0.0, self._cpu_s() - cpu_began)
        return call

    def _cpu_s(self) -> float:
        """CPU time until now, without the event loop's, which goes on beside a forward in the policy's thread."""
        if self._makers_clock is None or get_ident() == self._maker:
            return time.process_time()
        try:
            return time.process_time() - time.clock_gettime(self._makers_clock)
        except OSError:  # that thread has ended: nobody waits for this forward
            return time.process_time()

    def _chunks(self, requests: Sequence[Request], call: Call) -> Sequence[Any]:
        chunks = self._try(requests, call)
        if chunks is not None:
            return chunks
        found: list[Any] = []
        size = len(requests)
        while len(found) < len(requests):
            if chunks is None:  # the last try did not fit
                _release_memory()
                size = call.fits = size // 2
            chunks = self._try(requests[len(found) : len(found) + size], call)
            found += [] if chunks is None else chunks
        return found

    def _try(self, requests: Sequence[Request], call: Call) -> list[Any] | None:
        """The chunks; None where they do not fit into memory. It returns, as until its handler is left the exception
        holds the frames that hold the memory."""
        began = time.perf_counter()
        try:
            chunks = [self._kept(chunk) for chunk in self._checked(requests)]
        except Exception as exc:
            if len(requests) == 1 or not is_out_of_memory(exc):
                raise
            return None
        call.forwards.append((len(requests), time.perf_counter() - began))
        return chunks

    def _checked(self, requests: Sequence[Request]) -> Sequence[Any]:
        chunks = self._infer(requests)
        if not isinstance(chunks, Sized):  # a generator
            chunks = list(chunks)
        if len(chunks) != len(requests):
            raise PolicyError(f"the policy returned {len(chunks)} action chunks for {len(requests)} requests")
        return chunks


def _clock_of_this_thread() -> int | None:
    """None where the system has no such clock that others may read."""
    return time.pthread_getcpuclockid(get_ident()) if hasattr(time, "pthread_getcpuclockid") else None


def blame(requests: Sequence[Request], error: BaseException) -> BaseException:
    """The policy's exception as a `PolicyError` that names the episodes; what is no fault of it, as it is."""
    if isinstance(error, (RolloutError, *MEANT)):
        return error
    where = ", ".join(f"{request.episode.task} episode {request.episode.episode}" for request in requests[:3])
    what = f"the policy raised {type(error).__name__}: {error}"
    found = PolicyError(f"{what} (batch of {len(requests)}: {where}{', …' if len(requests) > 3 else ''})")
    found.__cause__ = error
    return found


def _copied(chunk: Any) -> Any:
    """The chunk in memory of its own. Tensors become arrays here, in the policy's thread."""
    if isinstance(chunk, list | tuple):
        return [_copied(item) for item in chunk] if isinstance(chunk, list) else tuple(map(_copied, chunk))
    if isinstance(chunk, dict):
        return {key: _copied(value) for key, value in chunk.items()}
    if not hasattr(chunk, "__array__") or isinstance(chunk, np.generic):
        return chunk
    return np.asarray(chunk).copy()  # not np.array: tensors warn of what they are asked then


def _as_it_is(chunk: Any) -> Any:
    return chunk


def is_out_of_memory(error: Exception) -> bool:
    """Torch's own (by name: torch may not even be imported), its CPU allocator's plain RuntimeError, Python's."""
    names = {kind.__name__ for kind in type(error).__mro__}
    told = isinstance(error, RuntimeError) and "allocate memory" in str(error)
    return bool(names & {"OutOfMemoryError", "MemoryError"}) or told


def _release_memory() -> None:
    torch = sys.modules.get("torch")
    if torch is not None and torch.cuda.is_available():
        torch.cuda.empty_cache()  # the next, smaller try shall not fail for what the cache holds in pieces
