"""Arrays that strangers send: checked before anything is allocated, and never unpickled."""

from __future__ import annotations

import re
from collections.abc import Sequence
from math import prod
from typing import Any, Final

import numpy as np

from rollout.errors import ProtocolError

__all__ = ["checked_array", "number_dtype"]

KINDS: Final = "biufc"  # bool, integers, floats, complex; object, void and text dtypes can carry anything
_NAME: Final = re.compile(r"[<>|=]?[a-zA-Z]\d{0,2}")  # what `np.dtype.str` gives for numbers


def number_dtype(name: Any) -> np.dtype:
    """The dtype of that name, which is all that NumPy's parser of dtypes is given. Raises `ProtocolError`."""
    try:
        if isinstance(name, str) and _NAME.fullmatch(name):
            return np.dtype(name)
    except TypeError:
        pass
    raise ProtocolError(f"{str(name)[:40]!r} is not the dtype of an array of numbers")


def checked_array(kind: np.dtype, shape: Sequence[Any], data: Any) -> np.ndarray:
    """The array in `data` (bytes), as a read-only view. Raises `ProtocolError` where it is none, or one of objects."""
    try:
        sizes = tuple(shape)
        if kind.kind not in KINDS or kind.hasobject:
            raise ProtocolError(f"an array of {kind.str!r}: only numbers are taken")
        if any(type(size) is not int for size in sizes):
            raise ProtocolError(f"an array of shape {str(list(sizes))[:80]}: sizes are whole numbers")
        if any(size < 0 for size in sizes) or prod(sizes) * kind.itemsize != len(data):
            raise ProtocolError(f"an array of {kind.str} and shape {sizes} in {len(data)} bytes")
        return np.frombuffer(data, kind).reshape(sizes)
    except (TypeError, ValueError, OverflowError) as exc:
        raise ProtocolError(f"not an array: {exc}") from exc
