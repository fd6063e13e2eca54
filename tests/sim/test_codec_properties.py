"""Frames from anywhere: a message of the protocol, or a fault; never anything else, and no memory for a lie."""

from __future__ import annotations

import os
import resource
import struct
import sys
import threading
from collections.abc import Callable, Sequence
from contextlib import nullcontext, suppress
from itertools import pairwise
from typing import Any

import msgspec
import numpy as np
import pytest
from gymnasium.spaces import GraphInstance
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from rollout.errors import ProtocolError
from rollout.sim.protocol import (
    Build,
    Close,
    Command,
    Cost,
    Describe,
    Failed,
    Release,
    Reply,
    Reset,
    ResetDone,
    Run,
    RunDone,
    Started,
)
from rollout.sim.transport import (
    FIRST_SIZE,
    BlockingConnection,
    Ends,
    FrameEncoder,
    FrameParser,
    LoopConnection,
    receive,
)
from rollout.types import EpisodeSpec, ObservationRequest, SuiteInfo, Task
from rollout.values import UNDECODABLE, Array, Items, Scalar, Value, pack, pack_array, unpack

few = settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])

texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=12)
arrays = hnp.arrays(
    st.sampled_from(
        [np.dtype(name) for name in ("?", "<i8", ">u2", "<f2", "<f4", "<c8", "<U3", "|S2", "<M8[ns]")]
    ),
    hnp.array_shapes(min_dims=0, max_dims=3, min_side=0, max_side=4),
)
leaves = (
    st.none() | st.booleans() | st.integers(-(2**63), 2**64 - 1) | st.floats(allow_nan=False) | texts | arrays
)
values = st.recursive(
    leaves,
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.lists(inner, max_size=3).map(tuple)
        | st.dictionaries(texts, inner, max_size=3)
        | st.builds(GraphInstance, inner, inner, inner)
    ),
    max_leaves=8,
)
observations = st.dictionaries(texts, values.map(pack), max_size=3)
seconds = st.floats(0, 1e9)
SPEC = EpisodeSpec(suite="toy:x", task="t", task_id=0, episode=0, seed=1, horizon=5)
SUITE = SuiteInfo(suite="toy:x", tasks=(Task(task="t", task_id=0),))

replies = (
    st.builds(Started, st.integers(0, 2**31))
    | st.builds(ResetDone, observations, seconds, seconds)
    | st.builds(
        RunDone,
        st.lists(st.floats(), max_size=3).map(lambda rewards: np.array(rewards, "f8").tobytes()),
        st.booleans(),
        st.booleans(),
        st.none() | st.booleans(),
        st.lists(observations, max_size=2).map(tuple),
        seconds,
        seconds,
        st.booleans(),
    )
    | st.builds(Failed, texts, texts, texts)
)
commands = (
    st.builds(Describe, texts)
    | st.just(Close())
    | st.builds(Build, st.just(SUITE), st.integers(0, 99))
    | st.just(Release())
    | st.builds(Reset, st.just(SPEC), st.just(ObservationRequest(keys=("a",))), st.none())
    | st.builds(
        Run, arrays.map(pack_array) | st.lists(values.map(pack), max_size=3).map(lambda v: Items(tuple(v)))
    )
)


def framed(message: Command | Reply) -> bytes:
    return bytes(FrameEncoder().encode(message))


def pieces(stream: bytes, cuts: Sequence[int]) -> list[bytes]:
    edges = sorted({0, len(stream), *(cut % (len(stream) + 1) for cut in cuts)})
    return [stream[start:end] for start, end in pairwise(edges)]


def plain(value: Any) -> Any:
    """Something that compares, bit for bit."""
    if isinstance(value, np.ndarray | np.generic):
        return (type(value).__name__, value.dtype.str, value.shape, value.tobytes())
    if isinstance(value, dict):
        return {key: plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return (type(value).__name__, [plain(item) for item in value])
    return (type(value).__name__, value)


class Loop:
    """What a `LoopConnection` wants of an event loop; the pipe is read when the test says so."""

    def add_reader(self, *_: Any) -> None: ...
    def remove_reader(self, *_: Any) -> None: ...
    def remove_writer(self, *_: Any) -> None: ...


def received(stream: bytes) -> tuple[list[Reply], list[Exception]]:
    """What the parent's end calls back with for a stream that then ends."""
    replies: list[Reply] = []
    faults: list[Exception] = []
    read, write = os.pipe()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("asyncio.get_running_loop", Loop)
        ends = Ends(read, os.open(os.devnull, os.O_WRONLY))
        connection = LoopConnection(ends, replies.append, faults.append)
    try:
        os.write(write, stream)
        os.close(write)
        connection.drain()
    finally:
        connection.close()
    return replies, faults


def commanded(stream: bytes) -> Command | None:
    """What the child's end makes of the same."""
    read, write = os.pipe()
    try:
        os.write(write, stream)
        os.close(write)
        return BlockingConnection(Ends(read, read)).receive()
    finally:
        os.close(read)


@few
@given(values)
def test_every_value_comes_back_as_it_was(value: Any) -> None:
    wire = msgspec.msgpack.decode(bytearray(msgspec.msgpack.encode(pack(value))), type=Value)
    assert plain(unpack(wire)) == plain(value)


@few
@given(st.lists(replies, min_size=1, max_size=4), st.lists(st.integers(0, 10**6), max_size=12))
def test_messages_come_back_however_the_stream_is_cut(sent: list[Reply], cuts: list[int]) -> None:
    parser, decode = FrameParser(), msgspec.msgpack.Decoder(Reply).decode
    stream = b"".join(map(framed, sent))
    got = [decode(frame) for piece in pieces(stream, cuts) for frame in parser.feed(piece)]
    assert list(map(framed, got)) == list(map(framed, sent))
    assert parser.idle


@few
@given(commands)
def test_every_command_reaches_the_child_as_it_was(command: Command) -> None:
    got = commanded(framed(command))
    assert got is not None
    assert framed(got) == framed(command)


damages = st.lists(
    st.tuples(
        st.sampled_from(["flip", "cut", "insert"]), st.integers(0, 10**6), st.binary(min_size=1, max_size=4)
    ),
    min_size=1,
    max_size=4,
)


def damaged(stream: bytes, damage: list[tuple[str, int, bytes]]) -> bytes:
    data = bytearray(stream)
    for kind, anywhere, what in damage:
        at = anywhere % (len(data) + 1)
        if kind == "cut":
            del data[at:]
        elif kind == "insert":
            data[at:at] = what
        elif at < len(data):
            data[at] ^= what[0] or 1
    return bytes(data)


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(replies, damages)
def test_a_damaged_reply_is_a_reply_or_a_fault_and_nothing_else(
    reply: Reply, damage: list[tuple[str, int, bytes]]
) -> None:
    got, faults = received(damaged(framed(reply), damage))
    [fault] = faults  # the end of the stream, at the latest
    assert isinstance(fault, (ProtocolError, *UNDECODABLE))
    for each in got:
        values = each.observations if isinstance(each, RunDone) else [getattr(each, "observation", {})]
        for observation in values:
            for value in observation.values():
                with suppress(ProtocolError):
                    unpack(value)


@settings(max_examples=100, deadline=None)
@given(commands, damages)
def test_a_damaged_command_is_a_command_or_a_fault_and_nothing_else(
    command: Command, damage: list[tuple[str, int, bytes]]
) -> None:
    try:
        got = commanded(damaged(framed(command), damage))
    except ProtocolError:
        return
    assert got is None or isinstance(got, Command)


@settings(max_examples=100, deadline=None)
@given(st.binary(max_size=200))
@example(b"Warning: something was printed onto the wire\n")
@example(struct.pack("<I", 4) + b"\xd9\x02\xff\xff")  # text that is no UTF-8
@example(struct.pack("<I", 50_000) + b"\x91" * 50_000)
def test_garbage_is_one_fault(garbage: bytes) -> None:
    got, faults = received(garbage)
    assert len(faults) == 1
    assert all(isinstance(each, Reply) for each in got)


@pytest.mark.parametrize("levels", [200, 900, 3000, 200_000])
def test_nesting_of_any_depth_is_a_value_or_a_fault(levels: int) -> None:
    nested = b"\x92\xa1i\x91" * levels + b"\xc0"
    body = b"\x94" + msgspec.msgpack.encode("ResetDone") + b"\x81\xa1k" + nested + b"\x00\x00"
    frame = struct.pack("<I", len(body)) + body
    parser = FrameParser()
    [whole] = parser.feed(frame)
    try:
        reply = msgspec.msgpack.decode(whole, type=Reply)
        assert isinstance(reply, ResetDone)
    except RecursionError:
        pass  # what a connection turns into a fault
    else:
        with nullcontext() if levels < 300 else pytest.raises(ProtocolError, match="nested too deeply"):
            unpack(reply.observation["k"])


def test_a_frame_that_is_nested_too_deeply_is_one_fault() -> None:
    body = b"\x94" + msgspec.msgpack.encode("ResetDone") + b"\x81\xa1k" + b"\x92\xa1i\x91" * 12_000
    _, faults = received(struct.pack("<I", len(body)) + body)
    assert [type(fault) for fault in faults] == [RecursionError]


LIES = {
    "a list of 2^32 - 1": b"\xdd\xff\xff\xff\xff",
    "text of 4 GiB": b"\xdb\xff\xff\xff\xff",
    "bytes of 4 GiB": b"\xc6\xff\xff\xff\xff",
    "a map of 2^32 - 1": b"\xdf\xff\xff\xff\xff",
    "an extension of 4 GiB": b"\xc9\xff\xff\xff\xff\x05",
    "a list of 2^26 in each other": b"\xdd\x04\x00\x00\x00" * 60,
}


def placed(lie: bytes) -> list[bytes]:
    """The lie as a whole message, and where each kind of container is expected."""
    done = b"\x98" + msgspec.msgpack.encode("RunDone")
    return [
        lie,
        done + lie,
        done + b"\xc4\x00\xc2\xc2\xc0" + lie,
        done + b"\xc4\x00\xc2\xc2\xc0\x91" + lie,
        done + b"\xc4\x00\xc2\xc2\xc0\x91\x81\xa1k\x92\xa1i" + lie,
        done + b"\xc4\x00\xc2\xc2\xc0\x91\x81\xa1k\x92\xa1m" + lie,
        done + b"\xc4\x00\xc2\xc2\xc0\x91\x81\xa1k\x94\xa1a\xa3<f4" + lie,
    ]


def peak_growth(act: Callable[[], None]) -> int:
    """Bytes of address space that `act` took at most, in a child that may not have a gigabyte."""
    read, write = os.pipe()
    pid = os.fork()
    if pid == 0:
        status = 1
        try:
            before = _status("VmSize")
            resource.setrlimit(resource.RLIMIT_AS, (before + (1 << 30), resource.RLIM_INFINITY))
            act()
            os.write(write, str(_status("VmPeak") - before).encode())
            status = 0
        finally:
            os._exit(status)
    os.close(write)
    told = os.read(read, 64)
    os.close(read)
    _, status = os.waitpid(pid, 0)
    assert status == 0
    return int(told)


def _status(name: str) -> int:
    with open("/proc/self/status") as file:
        [line] = [line for line in file if line.startswith(f"{name}:")]
    return int(line.split()[1]) << 10


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads /proc")
@pytest.mark.parametrize("lie", LIES.values(), ids=LIES)
def test_a_size_that_is_only_declared_costs_nothing(lie: bytes) -> None:
    def decode() -> None:
        for kind in (Reply, Command, Any):
            for frame in placed(lie):
                try:
                    msgspec.msgpack.decode(frame, type=kind)
                except (msgspec.MsgspecError, RecursionError):
                    continue
                raise AssertionError(frame)

    assert peak_growth(decode) < 32 << 20


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads /proc")
@pytest.mark.parametrize("text", [b"At 4096 steps", b"\x00\x00\x00\x40" + bytes(6000)])
def test_text_on_the_wire_costs_no_gigabyte(text: bytes) -> None:
    """Its first bytes are a length of hundreds of megabytes, of which nothing will come."""
    assert FIRST_SIZE < struct.unpack("<I", text[:4])[0] <= 1 << 30

    def feed() -> None:
        parser = FrameParser()
        assert parser.feed(text) == []
        assert parser.room <= FIRST_SIZE

    assert peak_growth(feed) < 4 * FIRST_SIZE


@pytest.mark.parametrize("size", [FIRST_SIZE - 1, FIRST_SIZE, FIRST_SIZE + 1, 3 * FIRST_SIZE + 5])
def test_a_buffer_that_grows_with_its_frame_ends_as_the_frame(size: int) -> None:
    payload = np.random.default_rng(0).bytes(size)
    read, write = os.pipe()
    parser, stream = FrameParser(), struct.pack("<I", size) + payload + framed(Started(7))

    def send() -> None:
        with os.fdopen(write, "wb") as pipe:
            pipe.write(stream)

    sender = threading.Thread(target=send)
    sender.start()
    frames: list[bytearray] = []
    while (more := receive(read, parser)) is not None:
        frames += more
    sender.join(30)
    os.close(read)
    assert [bytes(frame) for frame in frames] == [payload, framed(Started(7))[4:]]


@pytest.mark.parametrize(
    ("dtype", "shape", "data"),
    [
        ("<f4", (2**62,), b""),
        ("<f4", (2**40, 2**40), b""),
        ("<f4", (0, 2**62), b""),
        ("<f4", (-1,), bytes(8)),
        ("<f4", (-1, 0), b""),
        ("<f4", (2**70,), b""),
        ("<f4", (1,) * 65, bytes(4)),
        ("<f4", (3,), bytes(8)),
        ("<U999999999", (1,), bytes(4)),
        ("<U99999999999999999999", (1,), bytes(4)),
        ("<U" + "9" * 5000, (1,), bytes(4)),
        ("|S0", (4,), b""),
        ("|O", (1,), bytes(8)),
        ("|O8", (1,), bytes(8)),
        ("<f4,<f4", (1,), bytes(8)),
        ("|V0", (1,), b""),
        ("<M8[999999999999Y]", (1,), bytes(8)),
        ("|a4", (1,), bytes(4)),
        ("", (1,), bytes(8)),
        ("float32", (1,), bytes(4)),
        ("<f4\n", (1,), bytes(4)),
    ],
)
def test_an_array_that_contradicts_itself_is_refused(dtype: str, shape: tuple[int, ...], data: bytes) -> None:
    with pytest.raises(ProtocolError, match=r"^bad array .{0,400}$"):
        unpack(Array(dtype, shape, memoryview(data)))
    if not shape or len(data) <= 8:
        with pytest.raises(ProtocolError, match=r"^bad scalar .{0,400}$"):
            unpack(Scalar(dtype if not dtype.startswith("<f4") else "|O8", data))


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf")])
def test_a_time_that_no_record_can_hold_is_no_message(value: float) -> None:
    for message in (ResetDone({}, value, 0.0), ResetDone({}, 0.0, 0.0, cost=Cost(render_cpu=value))):
        got, faults = received(framed(message))
        assert got == []
        assert [type(fault) for fault in faults] == [msgspec.ValidationError]


def test_a_space_whose_bounds_are_of_another_shape_is_no_description() -> None:
    from rollout.spaces import Box, Space

    bounds = pack_array(np.zeros(2, "f4"))
    sent = msgspec.msgpack.encode(Box("<f4", (2,), bounds, bounds))
    for old, new in (
        (b"\xa3<f4\xa5shape\x91\x02", b"\xa3|O8\xa5shape\x91\x02"),
        (b"shape\x91\x02", b"shape\x91\x03"),
    ):
        assert old in sent
        with pytest.raises(msgspec.ValidationError):
            msgspec.msgpack.decode(sent.replace(old, new, 1), type=Space)
