"""GR00T's messages: both forms of an array, and what no form may hold."""

from __future__ import annotations

import io
import pickle
from contextlib import suppress
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from rollout.errors import ProtocolError
from rollout.policies.groot_wire import ArrayForm, as_array, decode, encoder

msgpack = pytest.importorskip("msgpack")

NUMBERS = st.sampled_from(["?", "u1", "<i2", ">i4", "<f2", "<f4", "<f8"])
ANY_ARRAY = NUMBERS.flatmap(lambda dtype: arrays.arrays(dtype, arrays.array_shapes(min_dims=0, min_side=0)))
FORMS: tuple[ArrayForm, ...] = ("npy", "msgpack")


def npy(header: bytes, data: bytes = b"") -> dict[str, Any]:
    head = b"\x93NUMPY\x01\x00" + len(header).to_bytes(2, "little")
    return {"__ndarray_class__": True, "as_npy": head + header + data}


def saved(array: Any) -> dict[str, Any]:
    file = io.BytesIO()
    np.save(file, array, allow_pickle=True)
    return {"__ndarray_class__": True, "as_npy": file.getvalue()}


def nd(dtype: Any, shape: Any, data: Any, kind: Any = b"") -> dict[bytes, Any]:
    return {b"nd": True, b"type": dtype, b"kind": kind, b"shape": shape, b"data": data}


@given(array=ANY_ARRAY, form=st.sampled_from(FORMS), order=st.sampled_from("CF"))
def test_an_array_comes_back_as_it_was(array: np.ndarray, form: ArrayForm, order: Any) -> None:
    sent = np.asarray(array, order=order)
    found = as_array(decode(encoder(form).encode({"x": [sent]}))["x"][0])
    assert found.dtype == array.dtype
    assert found.shape == array.shape
    assert np.ascontiguousarray(found).tobytes() == np.ascontiguousarray(array).tobytes()


@given(array=ANY_ARRAY)
def test_each_form_is_what_servers_read(array: np.ndarray) -> None:
    older = msgpack.unpackb(encoder("npy").encode(array))
    np.testing.assert_array_equal(np.load(io.BytesIO(older["as_npy"]), allow_pickle=False), array)
    newer = msgpack.unpackb(encoder("msgpack").encode(array))
    found = np.ndarray(newer[b"shape"], newer[b"type"], newer[b"data"] or b"\0")
    np.testing.assert_array_equal(found, array)


@pytest.mark.parametrize(
    "value",
    [
        saved(np.array([{}, 1], object)),
        saved(np.zeros(2, [("a", "f4")])),
        saved(np.array(["a", "bc"])),
        nd("|O", [1], pickle.dumps([1])),
        nd([["", "|O"]], [1], pickle.dumps([1]), b"O"),
        nd("|O", [1], pickle.dumps([1]), "O"),
        nd([["a", "<f4"]], [1], bytes(4), b"V"),
        nd("<U1", [1], bytes(4)),
    ],
)
def test_only_numbers_are_taken(value: Any) -> None:
    with pytest.raises(ProtocolError):
        as_array(value)


@pytest.mark.parametrize(
    "value",
    [
        npy(b"{'descr': '<f8', 'fortran_order': False, 'shape': (99999999999,), }"),
        npy(b"{'descr': '<f8', 'fortran_order': False, 'shape': (-1,), }", bytes(8)),
        npy(b"((((((((((" * 100),
        npy(b"{" * 60_000),
        npy(b"__import__('os').abort()"),
        {"__ndarray_class__": True, "as_npy": b"\x93NUMPY\x03\x00"},
        {"__ndarray_class__": True, "as_npy": "text"},
        {"__ndarray_class__": True},
        nd("<f8", [1 << 60], bytes(8)),
        nd("<f8", [-1], bytes(8)),
        nd("<f8", [float("inf")], bytes(8)),
        nd("<f8", [1.5], bytes(8)),
        nd("<f8", [True], bytes(8)),
        nd("<f8", [0, 1 << 63], b""),
        nd("<f8", 1, bytes(8)),
        nd("no such", [1], bytes(8)),
        nd("<f8", [1], "text"),
        {b"nd": 1},
        {},
        [1.0],
        None,
    ],
)
def test_what_is_no_array_is_told_without_allocating_what_it_claims(value: Any) -> None:
    with pytest.raises(ProtocolError):
        as_array(value)


@pytest.mark.parametrize(
    "message", [b"", b"ERROR", b"\xdd\xff\xff\xff\xff", b"\x91" * 100_000, b"\x81\x80\x01", b"\xa1\xff"]
)
def test_what_is_no_message_is_told(message: bytes) -> None:
    with pytest.raises(ProtocolError, match="not a MessagePack message"):
        decode(message)


@given(st.binary(max_size=200))
def test_no_bytes_do_harm(data: bytes) -> None:
    for value in ({"__ndarray_class__": True, "as_npy": data}, nd("<f4", [1], data)):
        with suppress(ProtocolError):
            assert as_array(value).dtype.kind in "biufc"
    with suppress(ProtocolError):
        decode(data)


def test_objects_are_not_sent() -> None:
    for form in FORMS:
        for value in (np.array([{}]), np.array(["a"]), object()):
            with pytest.raises(TypeError, match="cannot be sent"):
                encoder(form).encode({"x": value})
