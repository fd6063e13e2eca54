"""openpi's frames: read and written as openpi's own package does, and refused where they hold anything else."""

from __future__ import annotations

import importlib
from typing import Any

import msgspec
import numpy as np
import pytest

from rollout.errors import ProtocolError
from rollout.policies.openpi_wire import packed, unpacked

MESSAGES: list[Any] = [
    {},
    {"prompt": "pick up the bowl", "n": 3, "x": 0.5, "yes": True, "no": None},
    {"nested": {"list": [1, [2.0, "three"]]}},
    *({"array": np.arange(6).reshape(2, 3).astype(dtype)} for dtype in ("u1", "i8", "f4", "f8", "f2", "?")),
    {"empty": np.zeros((0, 7), np.float32), "point": np.array(3.5), "big": np.arange(3, dtype=">f4")},
    {"turned": np.arange(12, dtype=np.uint8).reshape(3, 4)[::-1, ::-1]},
    {"scalars": [np.float32(1.5), np.int64(-3), np.bool_(True), np.uint8(255)]},
]


@pytest.fixture(scope="module")
def theirs(openpi_path: str) -> Any:
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(openpi_path.partition(":")[0])
        return importlib.import_module("openpi_client.msgpack_numpy")


def assert_same(found: Any, expected: Any) -> None:
    if isinstance(expected, dict):
        assert found.keys() == expected.keys()
        for key, value in expected.items():
            assert_same(found[key], value)
    elif isinstance(expected, list):
        assert len(found) == len(expected)
        for one, other in zip(found, expected, strict=True):
            assert_same(one, other)
    elif isinstance(expected, np.ndarray):
        assert (found.dtype, found.shape) == (expected.dtype, expected.shape)
        np.testing.assert_array_equal(found, expected)
    else:
        assert type(found) is type(expected)
        assert found == expected


@pytest.mark.parametrize("message", MESSAGES)
def test_a_message_survives_the_way(message: Any) -> None:
    assert_same(unpacked(packed(message)), message)


@pytest.mark.parametrize("message", MESSAGES)
def test_openpi_reads_our_frames_and_we_read_openpis(message: Any, theirs: Any) -> None:
    assert_same(theirs.unpackb(packed(message)), message)
    assert_same(unpacked(theirs.packb(message)), message)


@pytest.mark.parametrize("value", [np.array([object()]), np.array("text"), np.zeros(2, "m8[s]"), object()])
def test_what_is_no_number_is_not_sent(value: Any) -> None:
    with pytest.raises(TypeError, match="cannot be sent"):
        packed({"value": value})


def described(dtype: Any, shape: Any, data: Any) -> dict[bytes, Any]:
    return {b"__ndarray__": True, b"dtype": dtype, b"shape": shape, b"data": data}


@pytest.mark.parametrize(
    "frame",
    [
        b"",
        b"\xc1",
        b"\xdd\xff\xff\xff\xff",
        b"\x91" * 100_000,
        b"\x81\x80\x01",
        b"\x81\xa1\xff\x01",
        *(
            msgspec.msgpack.encode({"array": array})
            for array in (
                described("|O", [1], b"\0" * 8),
                described("O", [1], b"\0" * 8),
                described("<f4", [2], b"\0" * 4),
                described("<f4", [1 << 40], b"\0" * 4),
                described("<f4", [-1], b"\0" * 4),
                described("<f4", [float("inf")], b"\0" * 4),
                described("<f4", [1.5], b"\0" * 4),
                described("<f4", [True], b"\0" * 4),
                described("<f4", [0, 1 << 63], b""),
                described("<f4", "12", b"\0" * 4),
                described("<f4", [1], "text"),
                described("<f4", [1], None),
                described("<f4", None, b"\0" * 4),
                described(None, [1], b"\0" * 8),
                described("<U1", [1], b"\0" * 4),
                described("<M8[s]", [1], b"\0" * 8),
                described("f4,f4", [1], b"\0" * 8),
                described("(2,)f4", [1], b"\0" * 8),
                {b"__npgeneric__": True, b"dtype": "|u1", b"data": 300},
                {b"__npgeneric__": True, b"dtype": "|O", b"data": 3},
                {b"__npgeneric__": True, b"dtype": "<f4", b"data": "x"},
                {b"__npgeneric__": True, b"dtype": "<z9", b"data": 1},
            )
        ),
    ],
    ids=lambda frame: repr(frame[:60]),
)
def test_what_is_no_message_is_refused(frame: bytes) -> None:
    with pytest.raises(ProtocolError):
        unpacked(frame)
