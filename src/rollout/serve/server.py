"""`rollout serve`: a policy behind a websocket that speaks openpi's protocol, with the batcher between them."""

from __future__ import annotations

import errno
import hmac
import http
import logging
import socket
import sys
from contextlib import suppress
from importlib.metadata import version
from typing import Final

import anyio
import click
import msgspec
from websockets.asyncio.server import ServerConnection, serve
from websockets.exceptions import ConnectionClosed
from websockets.http11 import Request, Response

from rollout.display.base import Counters
from rollout.engine.batcher import Batcher
from rollout.errors import UsageError
from rollout.policies.base import Policy
from rollout.policies.load import policy_name
from rollout.policies.offer import ENTRY, Offer
from rollout.policies.openpi_wire import packed
from rollout.serve.answers import Answers, Client
from rollout.serve.failure import failed
from rollout.serve.forwards import Alike
from rollout.serve.options import Serving
from rollout.tune.recommend import AUTO_MAX_BATCH

__all__ = ["PolicyServer", "bound", "run_server"]

CLOSE_S: Final = 2.0  # for the clients' closing handshakes at the end
BACKLOG: Final = 100  # connections that wait to be accepted; asyncio's own number
PONG_S: Final = 60.0  # a client in a debugger answers no ping either
FAILED: Final = 1011  # RFC 6455's code for a server that cannot go on

# Websockets writes headers, API keys among them, to its log, and a traceback for each port scan.
_LOG: Final = logging.getLogger("rollout.serve")
_LOG.setLevel(logging.CRITICAL)
_LOG.addHandler(logging.NullHandler())


async def run_server(serving: Serving, listener: socket.socket, policy: Policy) -> None:
    """Serve `policy` on a bound socket until cancelled."""
    counters, config = Counters(), serving.config
    wanted = AUTO_MAX_BATCH if config.max_batch == "auto" else config.max_batch
    batcher = Batcher(
        Alike(policy.infer, _say),
        counters,
        max_batch=min(wanted, policy.spec.max_batch or wanted),
        max_wait_s=config.max_wait_ms / 1e3,
        inline=policy.spec.inline,
        calls=policy.spec.calls,
        goes_on=True,
        note=_say,
    )
    with batcher:
        server = PolicyServer(serving, policy, batcher)
        try:
            await server.run(listener)
        finally:
            _say(_account(counters, server.clients))


def bound(host: str, port: int) -> socket.socket:
    """A socket that listens at the address, so that no other server can have it while the policy loads.

    Who connects meanwhile waits in its backlog. Raises `UsageError` where the address cannot be had.
    """
    try:
        family, kind, _, _, address = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        listener = socket.socket(family, kind)
    except OSError as exc:
        raise UsageError(f"--host {host}: {exc.strerror}") from exc
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
        listener.listen(BACKLOG)  # only now is an address that somebody else has bound refused
    except OSError as exc:
        listener.close()
        hint = "; --port 0 takes any that is free" if exc.errno == errno.EADDRINUSE else ""
        raise UsageError(f"cannot listen at {host}:{port}: {exc.strerror}{hint}") from exc
    return listener


class PolicyServer:
    """The websocket side: handshakes, frames in and out, what a client is told when something fails."""

    def __init__(self, serving: Serving, policy: Policy, batcher: Batcher) -> None:
        self.clients = 0  # connections so far
        self._serving = serving
        self._answers = Answers(policy, batcher, serving.names)
        self._metadata = packed({ENTRY: msgspec.to_builtins(_offer(serving, policy))})
        self._told = ""  # the traceback that was shown last

    async def run(self, listener: socket.socket) -> None:
        """Serve on a bound socket until cancelled."""
        server = await serve(
            self._serve,
            sock=listener,
            compression=None,
            origins=[None],  # no browser: a page from anywhere could reach a loopback address
            process_request=self._admit,
            max_size=self._serving.max_frame,
            max_queue=1,  # requests come one after the other
            ping_timeout=PONG_S,
            logger=_LOG,
        )
        try:
            self._greet(listener)
            await anyio.sleep_forever()
        finally:
            server.close()
            with anyio.move_on_after(CLOSE_S, shield=True):
                await server.wait_closed()

    def _greet(self, listener: socket.socket) -> None:
        host, port = listener.getsockname()[:2]
        where = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
        if self._serving.is_exposed:
            _say(f"warning: whoever reaches {where} can use this policy; --api-key-env NAME asks for a key")
        click.echo(f"serving {policy_name(self._serving.policy)} on ws://{where}")
        with suppress(OSError):  # a closed pipe
            sys.stdout.flush()

    def _admit(self, connection: ServerConnection, request: Request) -> Response | None:
        """What to answer instead of opening a connection; None opens it."""
        if request.path == "/healthz":
            return connection.respond(http.HTTPStatus.OK, "OK\n")
        key = self._serving.key
        given = request.headers.get("Authorization", "").encode(errors="surrogateescape")
        if key is None or hmac.compare_digest(given, b"Api-Key " + key):
            return None
        return connection.respond(
            http.HTTPStatus.UNAUTHORIZED, "this server asks for 'Authorization: Api-Key KEY'\n"
        )

    async def _serve(self, connection: ServerConnection) -> None:
        """One connection, from its opening to its end."""
        client = self._answers.client()
        self.clients += 1
        try:
            await connection.send(self._metadata)
            async for frame in connection:
                await connection.send(await client.answer(frame))
        except ConnectionClosed:
            pass
        except Exception as exc:
            await self._fail(connection, client, exc)
        finally:
            client.part()

    async def _fail(self, connection: ServerConnection, client: Client, exc: Exception) -> None:
        """Tell the client what happened, as openpi's server does: the text, then the end of this connection."""
        failure = failed(exc)
        _say(f"connection {client.number}, from {_peer(connection)}: {failure}")
        if failure.trace and failure.trace != self._told:  # all clients of a batch meet the same exception
            self._told = failure.trace
            click.echo(failure.trace, err=True)
        with suppress(ConnectionClosed):
            await connection.send(failure.trace or str(failure))
            await connection.close(FAILED, "the error is in the frame before")


def _offer(serving: Serving, policy: Policy) -> Offer:
    name, versions = policy_name(serving.policy), getattr(policy, "versions", {})
    return Offer(
        policy=name,
        identity=serving.config.fingerprint(name, versions.get("checkpoint")),
        rollout=version("rollout-engine"),
        spec=policy.spec,
        versions={name: str(value) for name, value in versions.items()},
    )


def _peer(connection: ServerConnection) -> str:
    address = connection.remote_address
    return str(address[0]) if address else "an unknown address"


def _account(counters: Counters, clients: int) -> str:
    mean = counters.decisions / counters.batches if counters.batches else 0.0
    batches = f"{counters.decisions} decisions in {counters.batches} batches (mean {mean:.1f})"
    return f"{batches}, connections: {clients}"


def _say(message: str) -> None:
    with suppress(OSError):  # a closed terminal
        click.echo(f"rollout: {message}", err=True)
