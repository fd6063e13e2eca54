"""Requests to a GR00T policy server over ZeroMQ, with time-outs and reconnection."""

from __future__ import annotations

import time
from collections.abc import Mapping
from importlib import import_module
from struct import unpack_from
from threading import Event, Lock
from typing import Any, Final
from urllib.parse import urlsplit

from rollout.errors import PolicyError, ProtocolError, UsageError
from rollout.policies.groot_wire import ArrayForm, decode, encoder

__all__ = ["MEGABYTE", "Address", "GrootClient", "ServerRefused"]

TRIES: Final = 3
MEGABYTE: Final = 10**6
SLICE_S: Final = 0.1  # how long `close` may have to wait for a request that is under way


class ServerRefused(PolicyError):
    """Raised when the server answered `{"error": …}`; `text` is what it said."""

    def __init__(self, where: str, text: str) -> None:
        super().__init__(f"the GR00T server at {where} answered with an error: {text}")
        self.text = text


class Address:
    """Where a server listens: `tcp://HOST:PORT`."""

    def __init__(self, locator: str) -> None:
        """Raises `UsageError` where `locator` is of another form."""
        if any(mark in locator for mark in "@?#"):  # before anything of it is shown
            raise UsageError(
                "policy gr00t: give gr00t:tcp://HOST:PORT alone, and a token in the environment as GR00T_API_TOKEN: "
                "a run's record holds the address"
            )
        try:
            parts = urlsplit(locator)
            host, port = parts.hostname, parts.port
        except ValueError:
            host = port = None
        if not host or not port or locator != f"tcp://{parts.netloc}":
            raise UsageError(f"policy gr00t: {locator!r} is no server: give gr00t:tcp://HOST:PORT")
        self.host, self.port, self.url = host, port, locator
        self.ipv6 = ":" in host


class GrootClient:
    """One server, asked one thing at a time.

    Its socket is made by the thread that asks. Two threads must never be at one socket at a time: the lock holds a
    request together from sending to answer, and `close`, which comes from another thread, waits until a request that is
    under way has noticed it.
    """

    def __init__(
        self, address: Address, *, timeout_s: float, max_message_bytes: int, token: str | None = None
    ) -> None:
        self.where, self._ipv6 = address.url, address.ipv6
        self._timeout_s, self._max_bytes, self._token = timeout_s, max_message_bytes, token
        self._zmq: Any = import_module("zmq")
        self._context = self._zmq.Context()
        self._socket: Any = None  # REQ
        self._monitor: Any = None  # tells what becomes of its connection
        self._spoke = self._lost = False  # the server on it; it, after that
        self._turn, self._closing = Lock(), Event()
        self.arrays: ArrayForm = "npy"

    def ask(
        self,
        endpoint: str,
        data: Mapping[str, Any] | None = None,
        *,
        tries: int = TRIES,
        timeout_s: float | None = None,
    ) -> Any:
        """The server's answer, decoded but for its arrays.

        A request that is not answered in time, or whose connection breaks, is sent again over a new socket. Raises
        `ServerRefused`, and `PolicyError` where the server is silent or answers something else than a message.
        """
        request: dict[str, Any] = {"endpoint": endpoint}
        if data is not None:
            request["data"] = data
        if self._token is not None:
            request["api_token"] = self._token
        frame = encoder(self.arrays).encode(request)
        with self._turn:
            answer = self._answer(endpoint, frame, tries, self._timeout_s if timeout_s is None else timeout_s)
        return self._accepted(answer)

    def hang_up(self) -> None:
        """Close the connection; the next request opens another one."""
        with self._turn:
            self._disconnect()

    def close(self) -> None:
        """Close everything; a request that is under way ends with a `PolicyError`. Takes `SLICE_S` at most."""
        self._closing.set()
        with self._turn:
            self._disconnect()
            self._context.destroy(linger=0)

    def _answer(self, endpoint: str, frame: bytes, tries: int, timeout_s: float) -> Any:
        problem = ""
        for _ in range(tries):
            if self._closing.is_set():
                break
            answer, problem = self._exchange(frame, timeout_s)
            if answer is not None:
                return answer
            self._disconnect()  # a REQ socket whose answer is missing can send nothing more
        why = f"{problem or 'closed meanwhile'}{f' ({tries} tries)' if tries > 1 else ''}"
        raise PolicyError(f"the GR00T server at {self.where} gave no answer to {endpoint}: {why}")

    def _exchange(self, frame: bytes, timeout_s: float) -> tuple[Any, str]:
        """Send, and wait: the answer, or what went wrong."""
        ends = time.monotonic() + timeout_s
        try:
            self._connected().send(frame)
            while (left := ends - time.monotonic()) > 0 and not self._closing.is_set():
                if self._socket.poll(min(left, SLICE_S) * 1e3):
                    return self._socket.recv(), ""
                if self._hung_up() and not self._socket.poll(0):
                    most = f"max_message_mb={self._max_bytes / MEGABYTE:g}"
                    return None, f"it hung up: it ended, or its answer has more than {most}"
        except self._zmq.ZMQError as exc:
            return None, str(exc)
        return None, "" if self._closing.is_set() else f"nothing came within {timeout_s:g} s"

    def _connected(self) -> Any:
        if self._socket is not None and self._hung_up():
            self._disconnect()  # it was lost while nothing was asked
        if self._socket is None:
            self._connect()
        return self._socket

    def _connect(self) -> None:
        socket = self._context.socket(self._zmq.REQ)
        socket.linger = 0
        socket.ipv6 = self._ipv6
        socket.rcvtimeo = socket.sndtimeo = round(self._timeout_s * 1e3)
        socket.maxmsgsize = self._max_bytes  # more ends the connection, before anything is allocated
        events = self._zmq.EVENT_HANDSHAKE_SUCCEEDED | self._zmq.EVENT_DISCONNECTED
        self._socket, self._monitor = socket, socket.get_monitor_socket(events)
        self._spoke = self._lost = False
        self._monitor.linger = 0
        socket.connect(self.where)

    def _hung_up(self) -> bool:
        """Whether the server ended a connection on which it had spoken.

        One that ends before is a proxy's (`ssh -L`, a container's port) whose server is away: nothing was sent, and
        ZeroMQ tries again by itself, as it does where nobody listens.
        """
        while self._monitor.poll(0):
            event = unpack_from("=H", self._monitor.recv_multipart()[0])[0]
            if event == self._zmq.EVENT_HANDSHAKE_SUCCEEDED:
                self._spoke = True
            elif event == self._zmq.EVENT_DISCONNECTED:
                self._lost |= self._spoke
        return self._lost

    def _disconnect(self) -> None:
        if self._socket is not None:
            self._socket.disable_monitor()
            self._monitor.close(linger=0)
            self._socket.close(linger=0)
        self._socket = self._monitor = None

    def _accepted(self, frame: bytes) -> Any:
        try:
            answer = decode(frame)
        except ProtocolError as exc:
            raise PolicyError(f"the GR00T server at {self.where} answered {exc}") from exc
        if isinstance(answer, dict) and "error" in answer:
            text = str(answer["error"])
            # A server may quote the request.
            raise ServerRefused(self.where, text.replace(self._token, "…") if self._token else text)
        return answer
