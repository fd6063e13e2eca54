"""openpi's frames: MessagePack, in which NumPy arrays and scalars are maps with bytes keys.

The format is that of `openpi_client.msgpack_numpy` (openpi-client 0.1.2).
"""

from __future__ import annotations

from typing import Any, Final

import msgspec
import numpy as np

from rollout.errors import ProtocolError
from rollout.policies.wire import checked_array, number_dtype
from rollout.values import UNDECODABLE

__all__ = ["packed", "unpacked"]

_SENT: Final = "biuf"  # kinds of dtypes: bool, integers, floats


def packed(message: Any) -> bytes:
    """A message of dicts, lists, text, numbers and arrays as one frame. Raises `TypeError` for other arrays."""
    return _encoder.encode(message)


def unpacked(frame: bytes) -> Any:
    """The message in `frame`; its arrays are read-only views on copies of their bytes.

    Raises `ProtocolError` where it is none, or holds an array of anything but numbers.
    """
    try:
        return _restored(_decoder.decode(frame))
    except UNDECODABLE as exc:
        raise ProtocolError(f"not a MessagePack message: {exc}") from exc


def _described(value: Any) -> Any:
    """What stands for an array or a scalar."""
    if isinstance(value, np.str_):
        return str(value)
    if not isinstance(value, np.ndarray | np.generic) or value.dtype.kind not in _SENT:
        what = f"dtype {value.dtype}" if hasattr(value, "dtype") else type(value).__name__
        raise TypeError(f"a value of {what} cannot be sent to or from an openpi server")
    if isinstance(value, np.ndarray):
        return {
            b"__ndarray__": True,
            b"data": value.tobytes(),
            b"dtype": value.dtype.str,
            b"shape": value.shape,
        }
    return {b"__npgeneric__": True, b"data": value.item(), b"dtype": value.dtype.str}


def _restored(value: Any) -> Any:
    if isinstance(value, list):
        return [_restored(item) for item in value]
    if not isinstance(value, dict):
        return value
    if b"__ndarray__" in value:
        return checked_array(
            number_dtype(value.get(b"dtype")), value.get(b"shape", ()), value.get(b"data", b"")
        )
    if b"__npgeneric__" in value:
        return _scalar(number_dtype(value.get(b"dtype")), value.get(b"data"))
    return {key: _restored(item) for key, item in value.items()}


def _scalar(dtype: np.dtype, value: Any) -> np.generic:
    if not isinstance(value, bool | int | float):
        raise ProtocolError(f"a NumPy scalar of {type(value).__name__}: only numbers are taken")
    try:
        with np.errstate(over="raise"):
            [scalar] = checked_array(dtype, (1,), np.array([value], dtype).tobytes())
    except (TypeError, ValueError, ArithmeticError) as exc:
        raise ProtocolError(f"not a NumPy scalar of {dtype}: {exc}") from exc
    found: np.generic = scalar
    return found


_encoder: Final = msgspec.msgpack.Encoder(enc_hook=_described)
_decoder: Final = msgspec.msgpack.Decoder()
