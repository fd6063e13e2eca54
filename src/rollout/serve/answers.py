"""From a client's frame to the server's: decode, decide in a batch with others, encode."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping
from typing import Any, Final

import numpy as np

from rollout.engine.batcher import Batcher
from rollout.engine.forward import blame
from rollout.errors import PolicyError, ProtocolError
from rollout.policies.base import Policy, Request
from rollout.policies.offer import ENTRY, Asked, asked
from rollout.policies.openpi_wire import packed, unpacked
from rollout.serve.failure import failed
from rollout.serve.forwards import Forwarded
from rollout.serve.sessions import EpisodeState, Presence, Sessions
from rollout.serve.strangers import Stranger
from rollout.values import unpack

__all__ = ["Answers", "Client"]

GRACE_S: Final = 60.0  # for a client that lost its connections: its policy's memory must still be there


class Answers:
    """What all connections share."""

    def __init__(self, policy: Policy, batcher: Batcher, names: Mapping[str, str]) -> None:
        """`names` maps openpi's observation keys to ours."""
        self.policy, self.names = policy, names
        self.sessions = Sessions(policy.open_session)
        self.presence = Presence(self._left)
        self._batcher = batcher
        self._count = 0

    def client(self) -> Client:
        """A new connection."""
        self._batcher.active += 1
        self._count += 1
        return Client(self, self._count)

    def parted(self, client: str | None) -> None:
        """A connection has ended; `client` is the name by which one of ours asked on it."""
        self._batcher.active -= 1
        if client is not None:
            self.presence.parted(client)

    async def reply(self, request: Request, *, finite: bool = False) -> bytes:
        """The frame that answers `request`; with `finite`, one whose actions are. Raises `Failure`."""
        try:
            return await self._decide(request, finite)
        except Exception as exc:
            failure = failed(exc)
        raise failure  # here, where it has no context

    async def _decide(self, request: Request, finite: bool) -> bytes:
        began = time.perf_counter()
        forwarded: Forwarded = await self._batcher.decide(request)
        if forwarded.error is not None:
            raise blame([request], forwarded.error)
        total_ms = 1e3 * (time.perf_counter() - began)
        return packed(
            {
                "actions": _array(forwarded.chunk, finite),
                "policy_timing": {"infer_ms": forwarded.infer_ms},
                "server_timing": {"infer_ms": total_ms, "batch": forwarded.batch},
            }
        )

    def _left(self, client: str) -> None:
        asyncio.get_running_loop().call_later(GRACE_S, self._forget, client)

    def _forget(self, client: str) -> None:
        if client not in self.presence:
            self.sessions.forget(client)


class Client:
    """One connection. Its requests come one after the other."""

    def __init__(self, answers: Answers, number: int) -> None:
        self.number = number
        self._answers = answers
        self._name: str | None = None  # of a client of ours
        self._stranger = Stranger(number, answers.policy, answers.names)

    async def answer(self, frame: bytes | str) -> bytes:
        """The reply to `frame`. Raises `ProtocolError` where the client is to blame, `Failure` where the policy is."""
        if isinstance(frame, str):
            raise ProtocolError("a request must be a binary frame")
        message = unpacked(frame)
        if isinstance(message, dict) and ENTRY in message:
            return await self._answer_ours(asked(message[ENTRY]))
        # A client of ours checks what it executes, as it does with a policy in its process; a robot may not.
        return await self._answers.reply(self._stranger.request(message), finite=True)

    def part(self) -> None:
        """The connection has ended."""
        self._answers.parted(self._name)

    async def _answer_ours(self, wanted: Asked) -> bytes:
        if self._name is None:
            self._name = wanted.client
            self._answers.presence.joined(wanted.client)
        if wanted.client != self._name:
            raise ProtocolError("two clients on one connection")
        state = self._answers.sessions.find(wanted)
        if state.answer is None or wanted.number != state.number:
            answer = asyncio.ensure_future(self._answers.reply(_request(wanted, state)))
            answer.add_done_callback(_retrieved)
            state.number, state.answer = wanted.number, answer
        # Shielded: the answer belongs to the session, and is asked for again where this connection breaks.
        return await asyncio.shield(state.answer)


def _retrieved(answer: asyncio.Future[bytes]) -> None:
    """Nobody may be left to hear that it failed."""
    if not answer.cancelled():
        answer.exception()


def _request(wanted: Asked, state: EpisodeState) -> Request:
    observation = {key: unpack(value) for key, value in wanted.observation.items()}
    return Request(state.episode, state.task, wanted.decision, wanted.step, state.session, observation)


def _array(chunk: Any, finite: bool) -> np.ndarray:
    try:
        array = np.asarray(chunk)
    except (TypeError, ValueError) as exc:
        raise _not_an_array(str(exc)) from None
    if array.dtype.kind not in "biuf":
        raise _not_an_array(f"dtype {array.dtype}")
    if finite and array.dtype.kind == "f" and not np.isfinite(array).all():
        raise PolicyError("the policy's action chunk has numbers that are not finite")
    return array


def _not_an_array(why: str) -> PolicyError:
    return PolicyError(
        f"the policy's action chunk is not an array of numbers ({why}): openpi's protocol has no other"
    )
