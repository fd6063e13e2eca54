"""Frames: whatever way the bytes arrive, the messages come out, or the stream is refused."""

from __future__ import annotations

import socket
import struct
import threading

import anyio
import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rollout.errors import ProtocolError
from rollout.sim.protocol import MAX_FRAME, Describe, Failed, Reply, RunDone, Started, reply_decoder
from rollout.sim.transport import BlockingConnection, FrameParser, LoopConnection, encode_frame, socket_pair
from rollout.values import pack_array, unpack_array

ENCODER = msgspec.msgpack.Encoder()


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
        into = parser.pending()
        assert into is not None
        count = min(len(into), 700)
        into[:count] = stream[at : at + count]
        at += count
        frames = parser.received(count)
    assert bytes(frames[0]) == payload
    assert parser.pending() is None


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
        done = RunDone(pack_array(np.full(3, value)), False, False, None, (), 0.0, 0.0)
        (frame,) = parser.feed(bytes(encode_frame(ENCODER, done)))
        reply = decoder.decode(frame)
        assert isinstance(reply, RunDone)
        arrays.append(unpack_array(reply.rewards))
    arrays[1][:] = 9.0
    assert arrays[0].tolist() == [1.0, 1.0, 1.0]


class Collected:
    """A `LoopConnection` on one end of a pair, and what it called back with."""

    def __init__(self, sock: socket.socket) -> None:
        self.replies: list[Reply] = []
        self.faults: list[Exception] = []
        self.happened = anyio.Event()
        self.connection = LoopConnection(sock, self._reply, self._fault)

    def _reply(self, reply: Reply) -> None:
        self.replies.append(reply)
        self.happened.set()

    def _fault(self, exc: Exception) -> None:
        self.faults.append(exc)
        self.happened.set()


def test_a_message_far_larger_than_the_sockets_buffer_passes_both_ways() -> None:
    big = np.arange(5_000_000, dtype=np.uint32)

    def child(sock: socket.socket) -> None:
        connection = BlockingConnection(sock)
        command = connection.receive()
        assert isinstance(command, Describe)
        connection.send(Failed("T", command.name, "x" * 20_000_000))

    async def main() -> Reply:
        ours, theirs = socket_pair()
        with theirs, anyio.fail_after(30):
            thread = threading.Thread(target=child, args=(theirs,))
            thread.start()
            end = Collected(ours)
            end.connection.send(Describe("y" * len(big)))
            await end.happened.wait()
            end.connection.close()
            thread.join(10)
            return end.replies[0]

    reply = anyio.run(main)
    assert isinstance(reply, Failed)
    assert (len(reply.message), len(reply.traceback)) == (5_000_000, 20_000_000)


@pytest.mark.parametrize("sent", [struct.pack("<I", 5) + b"\xc1oops", struct.pack("<I", MAX_FRAME + 1), b""])
def test_garbage_and_the_end_of_the_stream_are_faults_and_close_the_connection(sent: bytes) -> None:
    async def main() -> Collected:
        ours, theirs = socket_pair()
        end = Collected(ours)
        theirs.sendall(sent)
        theirs.close()
        with anyio.fail_after(10):
            await end.happened.wait()
        end.connection.close()
        return end

    end = anyio.run(main)
    assert len(end.faults) == 1
    assert end.replies == []


def test_the_child_sees_the_end_of_the_stream_as_none() -> None:
    ours, theirs = socket_pair()
    ours.close()
    with theirs:
        assert BlockingConnection(theirs).receive() is None


def test_a_reply_decodes_to_what_was_sent() -> None:
    frame = encode_frame(ENCODER, Started(42))
    assert reply_decoder().decode(frame[4:]) == Started(42)
