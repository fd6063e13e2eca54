"""What goes onto the wire comes back equal: values, dtypes, shapes and container types."""

from __future__ import annotations

import enum
from typing import Any

import msgspec
import numpy as np
import pytest
from gymnasium.spaces import GraphInstance
from hypothesis import example, given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from rollout.errors import ProtocolError
from rollout.values import Array, Scalar, Value, pack, pack_array, unpack, unpack_array

DECODER = msgspec.msgpack.Decoder(Value)


def over_the_wire(value: Any) -> Any:
    """Encode and decode as a connection does: the receiver owns a writable buffer."""
    return unpack(DECODER.decode(bytearray(msgspec.msgpack.encode(pack(value)))))


def assert_same(got: Any, want: Any) -> None:
    """Equal in type, dtype (byte order included), shape and every bit."""
    if isinstance(want, np.ndarray | np.generic):
        assert type(got) is type(want)
        assert got.dtype == want.dtype
        assert got.dtype.str == want.dtype.str
        assert got.shape == want.shape
        assert got.tobytes() == want.tobytes()
    elif isinstance(want, dict):
        assert list(got) == list(want)
        for key in want:
            assert_same(got[key], want[key])
    elif isinstance(want, tuple | list):
        assert type(got) is type(want)
        assert len(got) == len(want)
        for ours, theirs in zip(got, want, strict=True):
            assert_same(ours, theirs)
    elif isinstance(want, float):
        assert np.float64(got).tobytes() == np.float64(want).tobytes()
    else:
        assert type(got) is type(want)
        assert got == want


DTYPES = st.one_of(
    hnp.boolean_dtypes(),
    hnp.integer_dtypes(endianness="?"),
    hnp.unsigned_integer_dtypes(endianness="?"),
    hnp.floating_dtypes(endianness="?"),
    hnp.complex_number_dtypes(),
    hnp.datetime64_dtypes(),
    hnp.unicode_string_dtypes(min_len=1),
    hnp.byte_string_dtypes(min_len=1),
)
ARRAYS = DTYPES.flatmap(lambda dtype: hnp.arrays(dtype, hnp.array_shapes(min_dims=0, min_side=0, max_side=4)))
SCALARS = DTYPES.flatmap(lambda dtype: hnp.arrays(dtype, ())).map(lambda array: array[()])
TEXT = st.text(st.characters(exclude_categories=["Cs"]))
LEAVES = st.one_of(
    ARRAYS,
    SCALARS,
    TEXT,
    TEXT.map(np.str_),
    st.binary().map(np.bytes_),
    st.none(),
    st.booleans(),
    st.floats(),
    st.integers(-(2**63), 2**64 - 1),
)
NESTED = st.recursive(
    LEAVES,
    lambda inner: st.one_of(
        st.lists(inner, max_size=3),
        st.lists(inner, max_size=3).map(tuple),
        st.dictionaries(TEXT, inner, max_size=3),
        st.tuples(inner, inner, inner).map(lambda parts: GraphInstance(*parts)),
    ),
    max_leaves=8,
)


@given(NESTED)
@example(np.str_("a\0"))
@example(np.str_(""))
@example(np.bytes_(b"\0"))
@example(np.float64("nan"))
@example({"": ()})
@example(2**64 - 1)
@example(-(2**63))
@example(np.array(5, ">i2"))
@settings(max_examples=300, deadline=None)
def test_every_nested_value_comes_back_as_it_was(value: Any) -> None:
    assert_same(over_the_wire(value), value)


@given(ARRAYS, st.booleans(), st.integers(0, 3))
@settings(max_examples=200, deadline=None)
def test_arrays_with_any_strides_come_back_c_ordered_writable_and_aligned(
    array: np.ndarray, transpose: bool, cut: int
) -> None:
    view = array.T if transpose else array
    view = view[..., ::-1] if view.ndim else view
    view = view[::2] if cut > 1 and view.ndim else view
    got = over_the_wire(view)
    assert_same(got, np.ascontiguousarray(view).reshape(view.shape))
    assert got.flags.c_contiguous
    assert got.flags.behaved
    assert got.flags.writeable


@pytest.mark.parametrize("size", [10, 100_000])
def test_a_large_strided_array_is_sent_as_its_elements_not_as_its_memory(size: int) -> None:
    base = np.arange(4 * size, dtype=np.int64)
    for view in (base[::-3], base.reshape(4, size).T, np.broadcast_to(base[:1], (size,))):
        assert_same(over_the_wire(view), view.copy(order="C"))


@pytest.mark.parametrize("size", [4, 100_000])
def test_a_read_only_buffer_still_gives_writable_arrays(size: int) -> None:
    message = msgspec.msgpack.encode(pack(np.arange(size, dtype=np.uint8)))  # bytes: views are read-only
    got = unpack(DECODER.decode(message))
    got[0] = 7
    assert got[0] == 7
    assert msgspec.msgpack.encode(pack(np.arange(size, dtype=np.uint8))) == message


def test_a_large_array_is_decoded_without_a_copy() -> None:
    message = bytearray(msgspec.msgpack.encode(pack(np.zeros((256, 256, 3), np.uint8))))
    got = unpack(DECODER.decode(message))
    message[-1] = 9  # the last byte of the frame is the image's last byte
    assert got[-1, -1, -1] == 9


def test_a_large_array_is_packed_without_a_copy_and_a_small_one_with_one() -> None:
    large, small = np.zeros(5000, np.uint8), np.zeros(5, np.uint8)
    packed = pack_array(large), pack_array(small)
    large[0] = small[0] = 1
    assert packed[0].data[0] == 1
    assert packed[1].data[0] == 0


@pytest.mark.parametrize("start", range(9))
def test_arrays_are_aligned_wherever_they_lie_in_a_message(start: int) -> None:
    _, got = over_the_wire(["x" * start, np.arange(3.0)])
    assert got.flags.aligned
    assert got.tolist() == [0, 1, 2]


def test_subclasses_of_pythons_types_become_those_types() -> None:
    class Colour(enum.StrEnum):
        RED = "red"

    class Number(enum.IntEnum):
        TWO = 2

    class Shout(str):
        def __str__(self) -> str:
            return "LOUD"

    class Half(float):
        pass

    got = over_the_wire([Colour.RED, Number.TWO, Shout("quiet"), Half(0.5)])
    assert got == ["red", 2, "quiet", 0.5]
    assert [type(item) for item in got] == [str, int, str, float]


def test_keys_that_are_not_strings_become_strings_and_must_stay_distinct() -> None:
    assert over_the_wire({1: "a", (2, 3): "b"}) == {"1": "a", "(2, 3)": "b"}
    with pytest.raises(ValueError, match="not distinct as strings"):
        pack({1: "a", "1": "b"})


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (object(), "type object"),
        ({1, 2}, "type set"),
        (1j, "type complex"),
        ([{"a": (b"raw",)}], "type bytes"),
        (2**64, "64 bits"),
        (-(2**63) - 1, "64 bits"),
        ("\ud800", "surrogates not allowed"),
        (np.str_("\ud800"), "surrogates not allowed"),
        (np.array([None, "a"]), "dtype object"),
        (np.zeros(2, [("x", "f4"), ("y", "i4")]), "cannot be sent"),
        (np.zeros(2, "V0"), "cannot be sent"),
    ],
)
def test_what_cannot_be_sent_is_refused_by_name_when_it_is_packed(value: Any, message: str) -> None:
    with pytest.raises((TypeError, ValueError), match=message):
        pack(value)


@pytest.mark.parametrize(
    ("dtype", "shape", "data"),
    [
        ("<f4", (2,), b"1234567"),
        ("<f4", (2,), b"123456789"),
        ("<f4", (-1,), b"1234"),
        ("<f4", (1 << 62, 1 << 62), b""),
        ("<f4", (1 << 63, 0), b""),
        ("<f4", (1,) * 100, b"1234"),
        ("|O", (1,), b"12345678"),
        ("|O8", (1,), b"12345678"),
        ("|T16", (1,), b"x" * 16),
        ("|V0", (9,), b""),
        ("<U0", (9,), b""),
        ("3f4", (1,), b"x" * 12),
        ("f4,i4", (1,), b"x" * 8),
        ("<f3", (1,), b"123"),
        ("f4", (1,), b"1234"),
        ("float32", (1,), b"1234"),
        ("", (), b""),
        ("<M8[parsec]", (1,), b"12345678"),
    ],
)
def test_an_array_whose_parts_do_not_fit_is_a_protocol_error(
    dtype: str, shape: tuple[int, ...], data: bytes
) -> None:
    with pytest.raises(ProtocolError, match="bad array"):
        unpack_array(Array(dtype, shape, memoryview(data)))


@pytest.mark.parametrize(
    ("dtype", "data"),
    [
        ("<f4", b"123"),
        ("<f4", b"12345678"),
        ("<f4", b""),
        ("|O", b"12345678"),
        ("nonsense", b""),
        ("str_", b"123"),
        ("str_", b"\x00\xd8\x00\x00"),
    ],
)
def test_a_scalar_whose_parts_do_not_fit_is_a_protocol_error(dtype: str, data: bytes) -> None:
    with pytest.raises(ProtocolError, match="bad scalar"):
        unpack(Scalar(dtype, data))


@given(st.text(max_size=12), st.lists(st.integers(-(2**63), 2**64 - 1), max_size=4), st.binary(max_size=32))
@settings(max_examples=300, deadline=None)
def test_no_array_header_does_anything_but_decode_or_raise_a_protocol_error(
    dtype: str, shape: list[int], data: bytes
) -> None:
    try:
        got = unpack_array(Array(dtype, tuple(shape), memoryview(data)))
    except ProtocolError:
        return
    assert got.nbytes == len(data)
