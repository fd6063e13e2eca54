"""Frames over a stream socket: a plain parser, a blocking connection (child) and an event-loop one (parent).

The parent's half uses the loop's reader on a raw descriptor: anyio's streams cost 4-5 times its CPU
(`benchmarks/transport.py`). anyio keeps what it is good at, lifetimes and structure.
"""

from __future__ import annotations

import asyncio
import socket
import struct
from collections.abc import Callable
from typing import Final

import msgspec

from rollout.errors import ProtocolError
from rollout.sim.protocol import MAX_FRAME, Command, Reply, command_decoder, reply_decoder

__all__ = ["BlockingConnection", "FrameParser", "LoopConnection", "encode_frame", "socket_pair"]

_LENGTH: Final = struct.Struct("<I")
READ_SIZE: Final = 1 << 16  # `recv(1 << 20)` costs 15 us more a call than 64 KiB: it allocates before it reads


def encode_frame(encoder: msgspec.msgpack.Encoder, message: Command | Reply) -> bytearray:
    """One message with its length in front. Raises `ProtocolError` where it is longer than `MAX_FRAME`."""
    frame = bytearray(_LENGTH.size)
    encoder.encode_into(message, frame, _LENGTH.size)
    size = len(frame) - _LENGTH.size
    if size > MAX_FRAME:
        raise ProtocolError(f"a message of {size} bytes is longer than the protocol's {MAX_FRAME}")
    _LENGTH.pack_into(frame, 0, size)
    return frame


class FrameParser:
    """Cuts a byte stream into frames. Every frame gets a buffer of its own, so views into it stay valid and writable."""

    def __init__(self) -> None:
        self._head = b""  # fewer bytes than a length
        self._body: bytearray | None = None  # a frame that is still coming in
        self._filled = 0

    def feed(self, data: bytes) -> list[bytearray]:
        """Frames that `data` completes. Raises `ProtocolError` for a length beyond `MAX_FRAME`."""
        frames: list[bytearray] = []
        at = 0
        if self._head:
            data, self._head = self._head + data, b""
        while at < len(data):
            if self._body is None:
                if len(data) - at < _LENGTH.size:
                    self._head = data[at:]
                    break
                (size,) = _LENGTH.unpack_from(data, at)
                if size > MAX_FRAME:
                    raise ProtocolError(f"a frame of {size} bytes is longer than the protocol's {MAX_FRAME}")
                at += _LENGTH.size
                if len(data) - at >= size:  # the common case: the whole frame is here
                    frames.append(bytearray(data[at : at + size]))
                    at += size
                    continue
                self._body, self._filled = bytearray(size), 0
            take = min(len(self._body) - self._filled, len(data) - at)
            self._body[self._filled : self._filled + take] = data[at : at + take]
            at += take
            frames += self._advance(take)
        return frames

    def pending(self) -> memoryview | None:
        """Where the rest of a long frame belongs, so that it can be received in place; then call `received`."""
        return None if self._body is None else memoryview(self._body)[self._filled :]

    def received(self, count: int) -> list[bytearray]:
        """`count` bytes were received into `pending()`."""
        return self._advance(count)

    def _advance(self, count: int) -> list[bytearray]:
        body = self._body
        assert body is not None
        self._filled += count
        if self._filled < len(body):
            return []
        self._body = None
        return [body]


def receive(sock: socket.socket, parser: FrameParser) -> list[bytearray] | None:
    """Receive once. None at the end of the stream."""
    into = parser.pending()
    if into is not None and len(into) > READ_SIZE:
        count = sock.recv_into(into)
        return parser.received(count) if count else None
    data = sock.recv(READ_SIZE)
    return parser.feed(data) if data else None


class BlockingConnection:
    """The child's end."""

    def __init__(self, sock: socket.socket) -> None:
        self._sock = sock
        self._parser = FrameParser()
        self._frames: list[bytearray] = []
        self._encoder = msgspec.msgpack.Encoder()
        self._decoder = command_decoder()

    def receive(self) -> Command | None:
        """Wait for the next command. None when the parent is gone. Raises `ProtocolError`."""
        while not self._frames:
            frames = receive(self._sock, self._parser)
            if frames is None:
                return None
            self._frames = frames
        try:
            return self._decoder.decode(self._frames.pop(0))
        except msgspec.MsgspecError as exc:
            raise ProtocolError(f"not a command: {exc}") from exc

    def send(self, reply: Reply) -> None:
        """Send one reply, however long."""
        self._sock.sendall(encode_frame(self._encoder, reply))


class LoopConnection:
    """The parent's end: writes at once what the socket takes, and calls back with every reply.

    `on_reply` gets each decoded reply; `on_fault` gets the exception after which the connection is unusable.
    """

    def __init__(self, sock: socket.socket, on_reply: Callable[[Reply], None],
                 on_fault: Callable[[Exception], None]) -> None:
        sock.setblocking(False)
        self._sock = sock
        self._fd = sock.fileno()
        self._loop = asyncio.get_running_loop()
        self._on_reply, self._on_fault = on_reply, on_fault
        self._parser = FrameParser()
        self._encoder = msgspec.msgpack.Encoder()
        self._decoder = reply_decoder()
        self._unsent = memoryview(b"")
        self._loop.add_reader(self._fd, self._readable)

    def send(self, command: Command) -> None:
        """Queue one command; what does not fit into the socket now follows when it is writable."""
        frame = encode_frame(self._encoder, command)
        assert not self._unsent  # strictly in turn: the last command was answered
        try:
            sent = self._sock.send(frame)
        except BlockingIOError:
            sent = 0
        except OSError:
            return  # the child is gone; its death is reported by its supervisor, with the reason
        if sent < len(frame):
            self._unsent = memoryview(frame)[sent:]
            self._loop.add_writer(self._fd, self._writable)

    def drain(self) -> None:
        """Read what a child sent before it died."""
        while self._fd >= 0 and self._readable():
            pass

    def close(self) -> None:
        """Forget the descriptor. Idempotent."""
        if self._fd < 0:
            return
        self._loop.remove_reader(self._fd)
        self._loop.remove_writer(self._fd)
        self._fd = -1
        self._sock.close()

    def _readable(self) -> bool:
        try:
            frames = receive(self._sock, self._parser)
            if frames is None:
                raise ProtocolError("the connection was closed")
            for frame in frames:
                self._on_reply(self._decoder.decode(frame))
        except BlockingIOError:
            return False
        except (ProtocolError, msgspec.MsgspecError, ConnectionError) as exc:
            self.close()
            self._on_fault(exc)
            return False
        return True

    def _writable(self) -> None:
        try:
            self._unsent = self._unsent[self._sock.send(self._unsent) :]
        except BlockingIOError:
            return
        except OSError:
            self._unsent = memoryview(b"")
        if not self._unsent:
            self._loop.remove_writer(self._fd)


def socket_pair() -> tuple[socket.socket, socket.socket]:
    """A connected pair with room for a frame of camera images (the kernel caps the size at its own limit)."""
    pair = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
    for sock in pair:
        for option in (socket.SO_SNDBUF, socket.SO_RCVBUF):
            sock.setsockopt(socket.SOL_SOCKET, option, 1 << 20)
    return pair
