"""Messages of GR00T's policy server: MessagePack, with arrays in one of two forms.

NVIDIA/Isaac-GR00T, gr00t/policy/server_client.py: N1.6 sends an array as the bytes of an `.npy` file, N1.7 as the map
that the package msgpack-numpy makes of it. Nothing is ever unpickled: arrays of objects are refused in both forms.
"""

from __future__ import annotations

from io import BytesIO
from tokenize import TokenError
from typing import Any, Final, Literal

import msgspec
import numpy as np
from numpy.lib import format as npy

from rollout.errors import ProtocolError
from rollout.policies.wire import checked_array, number_dtype
from rollout.values import UNDECODABLE

__all__ = ["ArrayForm", "as_array", "decode", "encoder"]

ArrayForm = Literal["npy", "msgpack"]

NPY_MARK: Final = "__ndarray_class__"
NPY_BYTES: Final = "as_npy"
LONGEST_HEADER: Final = 10_000  # of an .npy file; a few hundred bytes where it describes numbers
# What numpy raises for a header that is none: it parses it as Python.
NOT_NUMPY: Final = (ValueError, TypeError, SyntaxError, TokenError, RecursionError, MemoryError)


def encoder(form: ArrayForm) -> msgspec.msgpack.Encoder:
    """Encodes messages whose leaves may be arrays of numbers. Its `encode` raises `TypeError` for other dtypes."""
    return msgspec.msgpack.Encoder(enc_hook=_as_npy if form == "npy" else _as_map)


def decode(message: Any) -> Any:
    """The message in `message` (bytes), with arrays still in their form: see `as_array`. Raises `ProtocolError`."""
    try:
        return msgspec.msgpack.decode(message)
    except UNDECODABLE as exc:
        raise ProtocolError(f"not a MessagePack message: {exc}") from exc


def as_array(value: Any) -> np.ndarray:
    """The array, read-only, that a decoded message holds in either form. Raises `ProtocolError` where it is none."""
    if not isinstance(value, dict):
        raise ProtocolError(f"not an array: {type(value).__name__}")
    if (NPY_MARK in value) or (NPY_MARK.encode() in value):
        return _from_npy(_field(value, NPY_BYTES))
    if _field(value, "nd") is not True:
        raise ProtocolError("not an array: a map without its marks")
    if _field(value, "kind") not in (None, b"", ""):  # b"O" are pickled objects, b"V" records
        raise ProtocolError(f"an array of kind {_field(value, 'kind')!r}: only numbers are taken")
    dtype, shape = _field(value, "type"), _field(value, "shape")
    if not isinstance(dtype, str | bytes) or not isinstance(shape, list):
        raise ProtocolError("not an array: a map without type or shape")
    name = dtype if isinstance(dtype, str) else dtype.decode("latin-1")
    return checked_array(number_dtype(name), shape, _data(value))


def _field(value: dict[Any, Any], name: str) -> Any:
    return value.get(name, value.get(name.encode()))


def _data(value: dict[Any, Any]) -> bytes:
    data = _field(value, "data")
    if not isinstance(data, bytes):
        raise ProtocolError("not an array: a map without data")
    return data


def _from_npy(data: Any) -> np.ndarray:
    """As `np.load`, but nothing is allocated by what the header says: the array is a view into `data`."""
    if not isinstance(data, bytes):
        raise ProtocolError(f"not an array: no bytes in {NPY_BYTES!r}")
    file = BytesIO(data)
    try:
        readers = {(1, 0): npy.read_array_header_1_0, (2, 0): npy.read_array_header_2_0}
        version = npy.read_magic(file)
        if version not in readers:  # 3.0 is for records with names beyond latin-1
            raise ProtocolError(f"an .npy file of version {version}: only numbers are taken")
        shape, fortran, dtype = readers[version](file, max_header_size=LONGEST_HEADER)
    except NOT_NUMPY as exc:
        raise ProtocolError(f"not an .npy file: {exc}") from exc
    rest = memoryview(data)[file.tell() :]
    array = checked_array(dtype, shape[::-1] if fortran else shape, rest)
    return array.T if fortran else array


def _as_npy(value: Any) -> dict[str, Any]:
    array = _numbers(value)
    file = BytesIO()
    np.save(file, array, allow_pickle=False)
    return {NPY_MARK: True, NPY_BYTES: file.getbuffer()}


def _as_map(value: Any) -> dict[bytes, Any]:
    array = _numbers(value)
    data = np.ascontiguousarray(array).data.cast("B") if array.size else b""  # `cast` knows no empty arrays
    return {b"nd": True, b"type": array.dtype.str, b"kind": b"", b"shape": array.shape, b"data": data}


def _numbers(value: Any) -> np.ndarray:
    if not isinstance(value, np.ndarray) or value.dtype.kind not in "biuf":
        kind = value.dtype if isinstance(value, np.ndarray) else type(value).__name__
        raise TypeError(f"{kind} cannot be sent to a GR00T server: only arrays of numbers and text can")
    return value
