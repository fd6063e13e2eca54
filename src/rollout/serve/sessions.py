"""The episodes of rollout's own clients: what the policy remembers of each, and the last answer that it got."""

from __future__ import annotations

from asyncio import Future
from collections import OrderedDict
from collections.abc import Callable
from typing import Any, Final

from rollout.engine.meant import MEANT
from rollout.errors import PolicyError, ProtocolError
from rollout.policies.base import Session
from rollout.policies.offer import Asked, opening
from rollout.types import EpisodeSpec, TaskInfo

__all__ = ["EpisodeState", "Sessions"]

LIMIT: Final = 4096
"""Sessions that are remembered, those of all clients together: nobody says when an episode is over."""


class EpisodeState:
    """One episode of one client."""

    __slots__ = ("answer", "episode", "number", "session", "task")

    def __init__(self, episode: EpisodeSpec, task: TaskInfo, session: Session, number: int) -> None:
        self.episode, self.task, self.session = episode, task, session
        self.number = number  # of the last request
        self.answer: Future[bytes] | None = None  # to it


class Sessions:
    """Plain bookkeeping, by client and session; the least recently used are forgotten first."""

    def __init__(self, open_session: Callable[[EpisodeSpec, TaskInfo], Session], limit: int = LIMIT) -> None:
        self._open_session, self._limit = open_session, limit
        self._states: OrderedDict[tuple[str, int], EpisodeState] = OrderedDict()

    def __len__(self) -> int:
        return len(self._states)

    def find(self, asked: Asked) -> EpisodeState:
        """The state of the episode that `asked` is about, opened at its first request.

        Raises `ProtocolError` where a policy that remembers something no longer does.
        """
        key = (asked.client, asked.session)
        state = self._states.pop(key, None)
        if state is None:
            state = self._opened(asked)
        self._states[key] = state
        if len(self._states) > self._limit:
            self._states.popitem(last=False)
        if asked.number not in (state.number, state.number + 1):
            raise ProtocolError(f"request {asked.number} of its session came after request {state.number}")
        return state

    def forget(self, client: str) -> None:
        """A client has gone."""
        for key in [key for key in self._states if key[0] == client]:
            del self._states[key]

    def _opened(self, asked: Asked) -> EpisodeState:
        told = opening(asked.opening)
        try:
            session = self._open_session(told.episode, told.task)
        except (Exception, *MEANT):
            raise
        except BaseException as exc:  # a cancellation would end the connection in silence
            raise PolicyError(f"the policy's open_session raised {type(exc).__name__}: {exc}") from exc
        if session is not None and asked.number > 0:
            raise ProtocolError(
                "the server no longer knows this episode (was it restarted, or has it more than "
                f"{self._limit} episodes to remember?), and its policy remembers what came before: run it again"
            )
        return EpisodeState(told.episode, told.task, session, asked.number - 1)


class Presence:
    """Which clients are here, by how many connections. One whose connections all broke may come back."""

    def __init__(self, left: Callable[[str], Any]) -> None:
        self._left = left
        self._connections: dict[str, int] = {}

    def joined(self, client: str) -> None:
        """One connection more."""
        self._connections[client] = self._connections.get(client, 0) + 1

    def parted(self, client: str) -> None:
        """One connection less; `left` is called at the last one."""
        self._connections[client] -= 1
        if not self._connections[client]:
            del self._connections[client]
            self._left(client)

    def __contains__(self, client: str) -> bool:
        return client in self._connections
