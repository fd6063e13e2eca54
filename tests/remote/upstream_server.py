"""A policy server that does on the wire what openpi's does: one metadata frame, then request and reply in turn,
inference on the event loop, and an error as text with close code 1011.

`upstream_server.py BEHAVIOUR [LOG]`: how it answers, and a file for a line about each request.
"""

from __future__ import annotations

import asyncio
import http
import json
import os
import sys
import time
import traceback
from pathlib import Path
from typing import Any

import numpy as np
from openpi_client import msgpack_numpy
from websockets.asyncio.server import ServerConnection, serve
from websockets.exceptions import ConnectionClosed
from websockets.http11 import Request, Response

BEHAVIOUR = sys.argv[1]
LOG = Path(sys.argv[2]) if len(sys.argv) > 2 else None
asked = connected = 0


def infer(observation: dict[str, Any]) -> dict[str, Any]:
    """Five actions: the state's first value, five times, plus 0, 1, 2, …"""
    if BEHAVIOUR == "fail":
        raise ValueError("no weights today")
    if BEHAVIOUR == "slow":
        time.sleep(30)
    if BEHAVIOUR == "text":
        return {"actions": "left"}
    if BEHAVIOUR == "nothing":
        return {"state": np.zeros(3)}
    first = np.asarray(observation["observation/state"]).reshape(-1)[:1]
    return {"actions": first + np.arange(5.0)[:, np.newaxis]}


def note(observation: dict[str, Any]) -> None:
    if LOG is not None:
        shapes = {key: getattr(value, "shape", value) for key, value in observation.items()}
        means = {key: float(value.mean()) for key, value in observation.items() if hasattr(value, "mean")}
        with LOG.open("a") as file:
            file.write(json.dumps({"shapes": shapes, "means": means, "connected": connected}) + "\n")


async def handle(connection: ServerConnection) -> None:
    global asked, connected  # noqa: PLW0603
    connected += 1
    packer = msgpack_numpy.Packer()
    try:
        if BEHAVIOUR == "greet":
            await connection.send("hello")
        await connection.send(packer.pack({"model": "toy", "reset_pose": np.zeros(2)}))
        while True:
            observation = msgpack_numpy.unpackb(await connection.recv())
            asked += 1
            note(observation)
            if BEHAVIOUR == "drop" and asked in (2, 3):
                connection.transport.abort()
            began = time.monotonic()
            action = infer(observation)
            action["server_timing"] = {"infer_ms": 1e3 * (time.monotonic() - began)}
            await connection.send(packer.pack(action))
    except ConnectionClosed:
        pass
    except Exception:
        await connection.send(traceback.format_exc())
        await connection.close(1011, "Internal server error. Traceback included in previous frame.")
    finally:
        connected -= 1


def admit(connection: ServerConnection, request: Request) -> Response | None:
    if request.path == "/healthz":
        return connection.respond(http.HTTPStatus.OK, "OK\n")
    key = os.environ.get("EXPECTED_KEY")
    if key and request.headers.get("Authorization") != f"Api-Key {key}":
        return connection.respond(http.HTTPStatus.UNAUTHORIZED, "no\n")
    return None


async def main() -> None:
    limit = 1 << 16 if BEHAVIOUR == "small" else None
    async with serve(
        handle, "127.0.0.1", 0, compression=None, max_size=limit, process_request=admit
    ) as server:
        port = server.sockets[0].getsockname()[1]
        print(f"listening on ws://127.0.0.1:{port}", flush=True)
        await asyncio.get_running_loop().create_future()


asyncio.run(main())
