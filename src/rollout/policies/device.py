"""Where a policy runs, in which number format, and how many rows a forward has."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final, TypeVar

import torch

from rollout.config import EvalConfig
from rollout.errors import UsageError

__all__ = ["DTYPES", "blocks", "bucket", "choose_device", "fixed_rows", "in_blocks"]

T = TypeVar("T")

DTYPES: Final[Mapping[str, torch.dtype]] = {
    "fp32": torch.float32,
    "bf16": torch.bfloat16,
    "fp16": torch.float16,
}

CPU_ROWS: Final = 1
ROWS: Final = 8
"""Rows of a deterministic forward: matrix kernels differ with the batch size, so every forward gets the same.

On CPU that is one. Elementwise kernels (sigmoid, SiLU, tanh-GELU, …) compute the last elements of a tensor,
those that fill no vector, by another routine, which differs in the last bit: a row's place in a block would
show. It costs nothing where it counts: an 18-layer conv net takes 41 ms for one row, 457 for eight.
"""

BUCKETS: Final = (1, 2, 4, 8, 16, 24, 32)  # then multiples of 16


def choose_device(name: str) -> torch.device:
    """The device that `--device` names; `auto` is CUDA where there is one. Raises `UsageError`."""
    try:
        device = torch.device(("cuda" if torch.cuda.is_available() else "cpu") if name == "auto" else name)
    except RuntimeError as exc:
        raise UsageError(f"--device {name}: not a device; try cpu, cuda, cuda:1") from exc
    if device.type == "cuda" and not torch.cuda.is_available():
        raise UsageError(f"--device {name}: CUDA is not available here; use --device cpu")
    if device.type == "cuda" and (device.index or 0) >= torch.cuda.device_count():
        raise UsageError(f"--device {name}: there are {torch.cuda.device_count()} CUDA devices, from cuda:0")
    return device


def fixed_rows(config: EvalConfig, device: torch.device) -> int | None:
    """How many rows every forward has where batches may change no bit of an action; None where they may."""
    deterministic = device.type == "cpu" if config.deterministic == "auto" else config.deterministic
    if not deterministic:
        return None
    return CPU_ROWS if device.type == "cpu" else ROWS


def bucket(rows: int) -> int:
    """The padded batch size for `rows`, so that `torch.compile` and CUDA graphs see few shapes."""
    return next((size for size in BUCKETS if size >= rows), -(-rows // 16) * 16)


def blocks(items: Sequence[T], rows: int | None) -> Iterator[tuple[list[T], int]]:
    """`items`, `rows` at a time, the last ones repeated to fill the last block; with how many of a block are no such
    filling. With `rows` None all at once."""
    size = rows or len(items)
    for start in range(0, len(items), size):
        block = list(items[start : start + size])
        yield block + [block[-1]] * (size - len(block)), len(block)


def in_blocks(items: Sequence[T], rows: int | None, forward: Callable[[Sequence[T]], Any]) -> list[Any]:
    """What `forward` gives for `items`, one each, called block by block (see `blocks`)."""
    found: list[Any] = []
    for block, count in blocks(items, rows):
        found.extend(forward(block)[:count])
    return found
