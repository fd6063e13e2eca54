"""Frames: whatever way the bytes arrive, the messages come out, or the stream is refused."""

from __future__ import annotations

import os
import struct
import sys
import threading

import anyio
import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rollout.errors import ProtocolError
from rollout.sim.protocol import MAX_FRAME, Describe, Failed, Reply, RunDone, Started, reply_decoder
from rollout.sim.transport import (
    BlockingConnection,
    Ends,
    FrameEncoder,
    FrameParser,
    LoopConnection,
    open_pipes,
)
from rollout.values import Array, pack_array, unpack_array

ENCODER = FrameEncoder()


def cut(data: bytes, sizes: list[int]) -> list[bytes]:
    parts, at = [], 0
    for size in sizes:
        parts.append(data[at : at + size])
        at += size
    return [part for part in [*parts, data[at:]] if part]


@given(st.lists(st.binary(max_size=200), max_size=8), st.lists(st.integers(1, 60), max_size=40))
def test_frames_survive_any_fragmentation(payloads: list[bytes], sizes: list[int]) -> None:
    stream = b"".join(struct.pack("<I", len(payload)) + payload for payload in payloads)
    parser = FrameParser()
    frames = [bytes(frame) for part in cut(stream, sizes) for frame in parser.feed(part)]
    assert frames == payloads


@given(st.binary(min_size=1000, max_size=3000), st.integers(1, 900))
def test_the_rest_of_a_long_frame_can_be_received_in_place(payload: bytes, first: int) -> None:
    stream = struct.pack("<I", len(payload)) + payload
    parser = FrameParser()
    assert parser.feed(stream[: 4 + first]) == []
    frames: list[bytearray] = []
    at = 4 + first
    while not frames:
        count = min(parser.room, 700)
        with parser.pending() as into:
            into[:count] = stream[at : at + count]
        at += count
        frames = parser.received(count)
    assert bytes(frames[0]) == payload
    assert parser.room == 0


def test_a_length_beyond_the_limit_is_refused_before_anything_is_allocated() -> None:
    with pytest.raises(ProtocolError, match=str(MAX_FRAME)):
        FrameParser().feed(struct.pack("<I", MAX_FRAME + 1))


@given(st.binary(max_size=300))
def test_garbage_is_a_protocol_error_and_nothing_else(garbage: bytes) -> None:
    decoder = reply_decoder()
    try:
        reply = decoder.decode(garbage)
    except msgspec.MsgspecError:
        return
    assert isinstance(reply, msgspec.Struct)


def test_every_frame_has_a_buffer_of_its_own_so_arrays_stay_writable_and_unchanged() -> None:
    parser = FrameParser()
    decoder = reply_decoder()
    arrays = []
    for value in (1.0, 2.0):
        done = RunDone(b"", False, False, None, ({"x": pack_array(np.full(3, value))},), 0.0, 0.0)
        (frame,) = parser.feed(bytes(ENCODER.encode(done)))
        reply = decoder.decode(frame)
        assert isinstance(reply, RunDone)
        seen = reply.observations[0]["x"]
        assert isinstance(seen, Array)
        arrays.append(unpack_array(seen))
    arrays[1][:] = 9.0
    assert arrays[0].tolist() == [1.0, 1.0, 1.0]


class Collected:
    """A `LoopConnection` on one end, and what it called back with."""

    def __init__(self, ends: Ends) -> None:
        self.replies: list[Reply] = []
        self.faults: list[Exception] = []
        self.happened = anyio.Event()
        self.connection = LoopConnection(ends, self._reply, self._fault)

    def _reply(self, reply: Reply) -> None:
        self.replies.append(reply)
        self.happened.set()

    def _fault(self, exc: Exception) -> None:
        self.faults.append(exc)
        self.happened.set()


def test_a_message_far_larger_than_a_pipe_passes_both_ways() -> None:
    def child(ends: Ends) -> None:
        connection = BlockingConnection(ends)
        command = connection.receive()
        assert isinstance(command, Describe)
        connection.send(Failed("T", command.name, "x" * 20_000_000))

    async def main() -> Reply:
        ours, theirs = open_pipes()
        with anyio.fail_after(30):
            thread = threading.Thread(target=child, args=(theirs,))
            thread.start()
            end = Collected(ours)
            end.connection.send(Describe("y" * 5_000_000))
            await end.happened.wait()
            end.connection.close()
            thread.join(10)
            theirs.close()
            return end.replies[0]

    reply = anyio.run(main)
    assert isinstance(reply, Failed)
    assert (len(reply.message), len(reply.traceback)) == (5_000_000, 20_000_000)


@pytest.mark.parametrize("sent", [struct.pack("<I", 5) + b"\xc1oops", struct.pack("<I", MAX_FRAME + 1), b""])
def test_garbage_and_the_end_of_the_stream_are_faults_and_close_the_connection(sent: bytes) -> None:
    async def main() -> Collected:
        ours, theirs = open_pipes()
        end = Collected(ours)
        os.write(theirs.write, sent)
        theirs.close()
        with anyio.fail_after(10):
            await end.happened.wait()
        end.connection.close()
        return end

    end = anyio.run(main)
    assert len(end.faults) == 1
    assert end.replies == []


def test_a_command_to_a_dead_child_is_not_an_error_of_its_own() -> None:
    async def main() -> list[Exception]:
        ours, theirs = open_pipes()
        end = Collected(ours)
        theirs.close()
        end.connection.send(Describe("x"))
        with anyio.fail_after(10):
            await end.happened.wait()
        end.connection.send(Describe("x"))
        return end.faults

    assert [type(fault) for fault in anyio.run(main)] == [ProtocolError]


def test_the_child_sees_the_end_of_the_stream_as_none() -> None:
    ours, theirs = open_pipes()
    ours.close()
    assert BlockingConnection(theirs).receive() is None
    theirs.close()


def test_a_reply_decodes_to_what_was_sent() -> None:
    assert reply_decoder().decode(ENCODER.encode(Started(42))[4:]) == Started(42)


def test_a_giant_frame_does_not_keep_its_buffer() -> None:
    encoder = FrameEncoder()
    giant = len(encoder.encode(Failed("T", "m", "x" * (8 << 20))))
    assert giant > 8 << 20
    assert reply_decoder().decode(encoder.encode(Started(1))[4:]) == Started(1)
    assert sys.getsizeof(encoder.encode(Started(1))) < 1 << 20
