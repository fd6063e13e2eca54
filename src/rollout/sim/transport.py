"""Frames over a pair of pipes: a plain parser, a blocking connection (child) and an event-loop one (parent).

Pipes cost 4 us less a round trip than a socket pair; a pair for each worker keeps one worker's garbage from the others.
The parent's half uses the loop's reader on a raw descriptor: anyio's streams cost 4-5 times its CPU. anyio keeps what
it is good at, lifetimes and structure.
"""

from __future__ import annotations

import asyncio
import fcntl
import os
import struct
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Final

import msgspec
from msgspec import Struct

from rollout.errors import ProtocolError
from rollout.sim.protocol import MAX_FRAME, Command, Reply, command_decoder, reply_decoder
from rollout.values import UNDECODABLE

__all__ = ["BlockingConnection", "Ends", "FrameEncoder", "FrameParser", "LoopConnection", "open_pipes"]

_LENGTH: Final = struct.Struct("<I")
KEEP_SIZE: Final = 1 << 22  # the largest frame buffer that is kept
REPLY_PIPE_SIZE: Final = 1 << 20
FIRST_SIZE: Final = 1 << 22  # a longer frame's buffer grows with what arrives of it
READ_SIZE: Final = (
    448  # most messages; the rest of a longer one is received in place. More costs Python a malloc
)


class FrameEncoder:
    """Encodes messages into one buffer that it keeps: allocating a frame each time costs as much as encoding it."""

    def __init__(self) -> None:
        self._encoder = msgspec.msgpack.Encoder()
        self._frame = bytearray(_LENGTH.size)

    def encode(self, message: Command | Reply) -> bytearray:
        """One message with its length in front, valid until the next call.

        Raises `ProtocolError` where it is longer than `MAX_FRAME`.
        """
        frame = self._frame
        self._encoder.encode_into(message, frame, _LENGTH.size)
        size = len(frame) - _LENGTH.size
        if size > KEEP_SIZE:
            self._frame = bytearray(_LENGTH.size)  # a rare giant must not stay
        if size > MAX_FRAME:
            raise ProtocolError(f"a message of {size} bytes is longer than the protocol's {MAX_FRAME}")
        _LENGTH.pack_into(frame, 0, size)
        return frame


class FrameParser:
    """Cuts a byte stream into frames. Each has a buffer of its own, so views into it stay valid and writable.

    A buffer is never more than twice as long as what has arrived of its frame, or `FIRST_SIZE`: text that a child
    printed into its pipe reads as a length of hundreds of megabytes.
    """

    def __init__(self) -> None:
        self._head = b""  # fewer bytes than a length
        self._body: bytearray | None = None  # a frame that is still coming in
        self._size = self._filled = 0  # of that frame, and of what is here of it
        self.idle = True  # nothing is incomplete: the next byte starts a frame

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
                self._body, self._size, self._filled = bytearray(min(size, FIRST_SIZE)), size, 0
            take = min(len(self._body) - self._filled, len(data) - at)
            self._body[self._filled : self._filled + take] = data[at : at + take]
            at += take
            frames += self._advance(take)
        self.idle = self._body is None and not self._head
        return frames

    @property
    def room(self) -> int:
        """How many bytes `pending()` takes; 0 between frames."""
        return 0 if self._body is None else len(self._body) - self._filled

    def pending(self) -> memoryview:
        """Where the next part of a long frame belongs, so that it can be received in place.

        Release it, since the buffer cannot grow meanwhile; then call `received`.
        """
        assert self._body is not None
        with memoryview(self._body) as whole:
            return whole[self._filled :]

    def received(self, count: int) -> list[bytearray]:
        """`count` bytes were received into `pending()`."""
        frames = self._advance(count)
        self.idle = self._body is None
        return frames

    def _advance(self, count: int) -> list[bytearray]:
        body = self._body
        assert body is not None
        self._filled += count
        if self._filled == self._size:
            self._body = None
            return [body]
        if self._filled == len(body):
            body.extend(bytes(min(len(body), self._size - len(body))))
        return []


class Ends(Struct, frozen=True):
    """One side's descriptors."""

    read: int
    write: int

    def close(self) -> None:
        """Close both."""
        os.close(self.read)
        os.close(self.write)


def open_pipes() -> tuple[Ends, Ends]:
    """The parent's and the child's ends of a connection. Raises `OSError` where no descriptor is left."""
    command_read, command_write = os.pipe()
    try:
        reply_read, reply_write = os.pipe()
    except OSError:
        os.close(command_read)
        os.close(command_write)
        raise
    # A reply may be a frame of camera images; the kernel may refuse (its limit a user), and then it takes more turns.
    with suppress(OSError, AttributeError):
        fcntl.fcntl(reply_write, fcntl.F_SETPIPE_SZ, REPLY_PIPE_SIZE)
    return Ends(reply_read, command_write), Ends(command_read, reply_write)


def receive(descriptor: int, parser: FrameParser) -> Sequence[bytearray | memoryview] | None:
    """Receive once. None at the end of the stream."""
    if parser.idle:
        data = os.read(descriptor, READ_SIZE)
        # Exactly one frame, nearly always, since both sides take turns. Its arrays are read-only, and copied soon.
        if len(data) > _LENGTH.size and _LENGTH.unpack_from(data)[0] == len(data) - _LENGTH.size:
            return (memoryview(data)[_LENGTH.size :],)
    elif parser.room > READ_SIZE:
        with parser.pending() as into:
            count = os.readv(descriptor, [into])
        return parser.received(count) if count else None
    else:
        data = os.read(descriptor, READ_SIZE)
    return parser.feed(data) if data else None


class BlockingConnection:
    """The child's end."""

    def __init__(self, ends: Ends) -> None:
        self._read, self._write = ends.read, ends.write
        self._parser = FrameParser()
        self._ahead: deque[bytearray | memoryview] = deque()
        self._encode = FrameEncoder().encode
        self._decode = command_decoder().decode

    def receive(self) -> Command | None:
        """Wait for the next command. None when the parent is gone. Raises `ProtocolError`."""
        ahead = self._ahead
        while not ahead:
            frames = receive(self._read, self._parser)
            if frames is None:
                return None
            ahead.extend(frames)
        try:
            return self._decode(ahead.popleft())
        except UNDECODABLE as exc:
            raise ProtocolError(f"not a command: {exc}") from exc

    def send(self, reply: Reply) -> None:
        """Send one reply, however long."""
        frame = self._encode(reply)
        sent = os.write(self._write, frame)
        while sent < len(frame):
            sent += os.write(self._write, memoryview(frame)[sent:])


class LoopConnection:
    """The parent's end: writes at once what the pipe takes, and calls back with every reply.

    `on_reply` gets each decoded reply; `on_fault` gets the exception after which the connection is unusable.
    """

    def __init__(
        self, ends: Ends, on_reply: Callable[[Reply], None], on_fault: Callable[[Exception], None]
    ) -> None:
        os.set_blocking(ends.read, False)
        os.set_blocking(ends.write, False)
        self._ends: Ends | None = ends
        self._read = ends.read
        self._loop = asyncio.get_running_loop()
        self._on_reply, self._on_fault = on_reply, on_fault
        self._parser = FrameParser()
        self._encode = FrameEncoder().encode
        self._decode = reply_decoder().decode
        self._unsent = memoryview(b"")
        self._loop.add_reader(ends.read, self._readable)

    def send(self, command: Command) -> None:
        """Queue one command; what does not fit into the pipe now follows when it is writable."""
        if self._ends is None:
            return  # broken, which `on_fault` has said
        frame = self._encode(command)
        assert not self._unsent  # strictly in turn: the last command was answered
        try:
            sent = os.write(self._ends.write, frame)
        except BlockingIOError:
            sent = 0
        except OSError:
            return  # the child is gone; its death is reported by its supervisor, with the reason
        if sent < len(frame):
            self._unsent = memoryview(bytes(frame[sent:]))
            self._loop.add_writer(self._ends.write, self._writable)

    def drain(self) -> None:
        """Read what a child sent before it died."""
        while self._ends is not None and self._readable():
            pass

    def close(self) -> None:
        """Forget the descriptors. Idempotent."""
        ends, self._ends = self._ends, None
        if ends is None:
            return
        self._loop.remove_reader(ends.read)
        self._loop.remove_writer(ends.write)
        ends.close()

    def _readable(self) -> bool:
        try:
            frames = receive(self._read, self._parser)
            if frames is None:
                raise ProtocolError("the connection was closed")
            for frame in frames:
                self._on_reply(self._decode(frame))
        except BlockingIOError:
            return False
        except (ProtocolError, OSError, *UNDECODABLE) as exc:
            self.close()
            self._on_fault(exc)
            return False
        return True

    def _writable(self) -> None:
        assert self._ends is not None  # closing removes the writer
        try:
            self._unsent = self._unsent[os.write(self._ends.write, self._unsent) :]
        except BlockingIOError:
            return
        except OSError:
            self._unsent = memoryview(b"")
        if not self._unsent:
            self._loop.remove_writer(self._ends.write)
