"""Websocket connections to an openpi server: opened when they are needed, lost, opened again."""

from __future__ import annotations

import logging
import socket
import ssl
import struct
import time
from collections import deque
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from threading import Event
from typing import Any, Final
from urllib.parse import urlsplit

from msgspec import Struct
from websockets.exceptions import ConnectionClosed, InvalidMessage, InvalidStatus, WebSocketException
from websockets.sync.client import ClientConnection, connect

from rollout.errors import PolicyError, ProtocolError
from rollout.policies.offer import ENTRY
from rollout.policies.openpi_wire import unpacked

__all__ = ["Connections", "Link", "NoServer"]

PAUSES_S: Final = (0.2, 1.0)  # before the second and the third try
AWAY_PAUSE_S: Final = 1.0  # between looks for a server that is away
CLOSE_S: Final = 1.0  # upstream's server answers nothing, a closing handshake neither, while it infers
REFUSED: Final = (401, 403)  # HTTP's, for a key that is wrong
NOBODY_BEHIND: Final = (502, 503, 504)  # a proxy's, for a server that is away
TOO_BIG: Final = 1009  # RFC 6455's code for a message over a peer's limit

# Websockets writes headers, the API key among them, to its log at level DEBUG, whatever level an application sets.
_LOG: Final = logging.getLogger("rollout.openpi")
_LOG.setLevel(logging.INFO)


class NoServer(Exception):
    """No connection to a policy server; the message says why in one line."""


class ServerAway(NoServer):
    """Nobody listens, or what listens has no server behind it: it may be starting again."""


class KeyRefused(NoServer):
    """The server wants another API key, and will at the next try."""


class Link(Struct, frozen=True, kw_only=True):
    """Where the server is, and how long and how much is expected of it."""

    url: str
    connect_timeout_s: float
    timeout_s: float  # until a request is answered, or a server that was there is back
    max_frame: int  # bytes that a frame from the server may have


class Tries:
    """How often a request is tried again, and how long a server that is away is waited for."""

    def __init__(self, away_s: float) -> None:
        self._away_s = away_s
        self._pauses = iter(PAUSES_S)
        self._gives_up: float | None = None  # `time.monotonic()`

    def pause_s(self, exc: Exception) -> float | None:
        """How long to wait after `exc` before the next try; None: there is none."""
        if isinstance(exc, KeyRefused) or _too_big(exc):
            return None
        if not isinstance(exc, ServerAway):
            return next(self._pauses, None)
        now = time.monotonic()
        if self._gives_up is None:
            self._gives_up = now + self._away_s
        left = self._gives_up - now
        return min(AWAY_PAUSE_S, left) if left > 0 else None


class Connections:
    """Each carries one request at a time; `ask` may be called from several threads. Leaving the context closes all."""

    def __init__(self, link: Link, key: str | None) -> None:
        self.metadata: Any = None  # the server's
        self._link = link
        self._headers = None if key is None else {"Authorization": f"Api-Key {key}"}
        self._idle: deque[ClientConnection] = deque()
        self._open: set[ClientConnection] = set()
        self._closed = Event()

    def __enter__(self) -> Connections:
        return self

    def __exit__(self, *_: object) -> None:
        self._closed.set()
        connections = list(self._open)
        if connections:  # at once: each may have to wait for a server that is busy
            with ThreadPoolExecutor(len(connections)) as closing:
                list(closing.map(ClientConnection.close, connections))

    def connect(self) -> None:
        """Open the first one, and learn the server's metadata. Raises `NoServer`."""
        connection, self.metadata = self._connect(self._link.connect_timeout_s)
        self._idle.append(connection)

    def ask(self, frame: bytes) -> bytes | str:
        """What the server answers to `frame`: its own frame, or text where it failed.

        A request has no effect but its answer, so one that went unanswered is sent again, twice at most; a server that
        is away is waited for. Raises `PolicyError` where that does not help.
        """
        take: Callable[[], ClientConnection] = self._take
        tries, reasons = Tries(self._link.timeout_s), list[str]()
        while True:
            try:
                return self._exchange(take(), frame)
            except (ConnectionClosed, TimeoutError, NoServer) as exc:
                reasons.append(self._reason(exc, frame))
                pause_s = tries.pause_s(exc)
                if pause_s is None or self._closed.wait(pause_s):
                    told = "; then ".join(dict.fromkeys(reasons))
                    raise PolicyError(f"the policy server at {self._link.url}: {told}") from None
            take = self._fresh  # those that are idle may be as dead as this one

    def _exchange(self, connection: ClientConnection, frame: bytes) -> bytes | str:
        try:
            connection.send(frame)
            reply = connection.recv(timeout=self._link.timeout_s)
        except BaseException:
            self._drop(connection)  # a late answer would be taken for the next one's
            raise
        if isinstance(reply, str):
            self._drop(connection)  # the server closes it too
        else:
            self._idle.append(connection)
        return reply

    def _take(self) -> ClientConnection:
        try:
            return self._idle.pop()
        except IndexError:
            return self._fresh()

    def _fresh(self) -> ClientConnection:
        # A server that infers for somebody else answers no handshake meanwhile: it may take as long as a request.
        connection, metadata = self._connect(max(self._link.connect_timeout_s, self._link.timeout_s))
        if _offer(metadata) != _offer(self.metadata):
            self._drop(connection)
            raise PolicyError(f"the policy server at {self._link.url} was replaced: it offers another policy")
        return connection

    def _connect(self, timeout_s: float) -> tuple[ClientConnection, Any]:
        connection = self._handshake(timeout_s)
        self._open.add(connection)
        try:
            if self._closed.is_set():
                raise NoServer("the connections to it are closed")
            _limit_sending(connection, self._link.timeout_s)
            metadata = connection.recv(timeout=timeout_s)
            if isinstance(metadata, str):
                raise NoServer(f"it does not speak openpi's protocol: it began with {metadata[:80]!r}")
            return connection, unpacked(metadata)
        except BaseException as exc:
            self._drop(connection)
            if isinstance(exc, ConnectionClosed | TimeoutError | ProtocolError):
                kind = ServerAway if isinstance(exc, ConnectionClosed) else NoServer
                raise kind(
                    f"it does not speak openpi's protocol: no metadata came first ({exc or 'timed out'})"
                ) from exc
            raise

    def _handshake(self, timeout_s: float) -> ClientConnection:
        try:
            return connect(
                self._link.url,
                compression=None,
                additional_headers=self._headers,
                open_timeout=timeout_s,
                close_timeout=CLOSE_S,
                ping_interval=None,  # upstream's server answers no ping while it infers
                max_size=self._link.max_frame,
                proxy=None if _is_local(self._link.url) else True,
                logger=_LOG,
            ).__enter__()
        except (OSError, WebSocketException) as exc:
            raise _kind(exc)(_why(exc, timeout_s)) from exc

    def _drop(self, connection: ClientConnection) -> None:
        """Close at once, without the closing handshake."""
        with suppress(OSError):
            connection.socket.shutdown(socket.SHUT_RDWR)
        connection.close()
        self._open.discard(connection)

    def _reason(self, exc: Exception, frame: bytes) -> str:
        if isinstance(exc, ServerAway):
            return f"{exc} (waited for {self._link.timeout_s:g} s at most: --policy-arg timeout_s=S)"
        if isinstance(exc, NoServer):
            return str(exc)
        if _too_big(exc):
            return (
                f"a frame was too long: the request has {len(frame) / 2**20:.1f} MiB, which the server may limit; "
                f"its reply may have {self._link.max_frame / 2**20:.0f} MiB (--policy-arg max_frame_mb=N)"
            )
        if isinstance(exc, TimeoutError):
            return f"no answer to a request within {self._link.timeout_s:g} s (--policy-arg timeout_s=S)"
        return f"the connection was lost ({exc})"


def _limit_sending(connection: ClientConnection, seconds: float) -> None:
    """Websockets has no time-out for sending: let the operating system end a wait for a peer that reads nothing."""
    limit = struct.pack("ll", int(seconds), int(seconds % 1 * 1e6))
    connection.socket.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, limit)


def _too_big(exc: Exception) -> bool:
    frames = (exc.rcvd, exc.sent) if isinstance(exc, ConnectionClosed) else ()
    return any(frame is not None and frame.code == TOO_BIG for frame in frames)


def _offer(metadata: Any) -> Any:
    return metadata.get(ENTRY) if isinstance(metadata, dict) else None


def _is_local(url: str) -> bool:
    """Whether no proxy can be meant, whatever the environment says of proxies."""
    host = urlsplit(url).hostname or ""
    return host in ("localhost", "::1") or host.startswith("127.")


def _kind(exc: Exception) -> type[NoServer]:
    if isinstance(exc, InvalidStatus):
        status = exc.response.status_code
        return KeyRefused if status in REFUSED else ServerAway if status in NOBODY_BEHIND else NoServer
    if isinstance(
        exc, InvalidMessage
    ):  # one that hangs up instead of answering: what forwards a port, with no server
        return ServerAway if isinstance(exc.__cause__, EOFError | ConnectionError) else NoServer
    away = isinstance(exc, OSError | ConnectionClosed) and not isinstance(exc, TimeoutError | ssl.SSLError)
    return ServerAway if away else NoServer


def _why(exc: Exception, timeout_s: float) -> str:
    for kind, reason in REASONS.items():
        if isinstance(exc, kind):
            return reason.format(exc=exc, timeout_s=timeout_s)
    if isinstance(exc, InvalidStatus):
        return _refused(exc.response.status_code)
    return f"no connection ({type(exc).__name__}: {exc})"


def _refused(status: int) -> str:
    if status in REFUSED:
        return (
            f"it refused the API key, or asks for one (HTTP {status}): set OPENPI_API_KEY, or name another "
            "variable with --policy-arg api_key_env=NAME"
        )
    return f"no policy server answers there, but something that says HTTP {status}: check the address"


REASONS: Final[Mapping[type[Exception], str]] = {
    ConnectionRefusedError: "nothing listens there: start the server, or correct the address",
    socket.gaierror: "there is no such host: correct the address",
    TimeoutError: "no answer within {timeout_s:g} s: is it the right address, and is the server up?",
    ssl.SSLError: "TLS failed ({exc}): does the server speak wss://, and with a valid certificate?",
    InvalidMessage: "what answers there is not a websocket server: check the port",
}
