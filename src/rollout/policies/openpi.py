"""`openpi:ws://HOST:PORT`: a policy on a server that speaks openpi's websocket protocol, ours (`rollout serve`) too."""

from __future__ import annotations

import itertools
import os
import uuid
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib.util import find_spec
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Final, Protocol
from urllib.parse import urlsplit

import msgspec
import numpy as np
from msgspec import Meta, Struct, structs

from rollout.config import EvalConfig
from rollout.errors import PolicyError, ProtocolError, UsageError
from rollout.policies.base import PolicySpec, Request, Session
from rollout.policies.offer import ENTRY, Asked, Offer, Opening, offered
from rollout.policies.openpi_wire import packed, unpacked
from rollout.types import EpisodeSpec, TaskInfo
from rollout.values import pack

if TYPE_CHECKING:
    from rollout.policies.openpi_connections import Connections

__all__ = ["LIBERO_KEYS", "OpenpiPolicy"]

LIBERO_KEYS: Final[Mapping[str, str]] = {
    "observation/image": "observation.images.image",
    "observation/wrist_image": "observation.images.image2",
    "observation/state": "observation.state",
    "prompt": "task",
}
"""openpi's names of what its LIBERO policies read, and ours."""

IMAGE_SIZE: Final = 224  # openpi's
KEY_VARIABLE: Final = "OPENPI_API_KEY"
SHOWN: Final = 20_000  # most characters of a server's traceback

Seconds = Annotated[float, Meta(gt=0)]


class Arguments(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What `--policy-arg` can say."""

    connections: Annotated[int, Meta(ge=1, le=1024)] | None = None  # requests in flight; None: 8, 64 to ours
    keys: dict[str, str] | None = None  # by openpi's name; None: LIBERO's
    image_size: Annotated[int, Meta(ge=0)] | None = None  # None: 224; 0: pictures as they are
    timeout_s: Seconds = 60.0  # until a request is answered
    connect_timeout_s: Seconds = 10.0
    max_frame_mb: Annotated[int, Meta(ge=1, le=1024)] = 64  # MiB that a reply may have
    api_key_env: str | None = None  # the environment variable that holds the API key


class Dialect(Protocol):
    """How decisions are put to a server: as openpi's clients do, or as ours does to ours."""

    spec: PolicySpec
    versions: dict[str, str]

    def open_session(self, episode: EpisodeSpec, task: TaskInfo) -> Session: ...

    def message(self, request: Request) -> dict[str, Any]: ...

    def answered(self, session: Session) -> None: ...


class OpenpiPolicy:
    """Each `infer` is one request on a connection of its own; up to `spec.calls` may run at once."""

    locator: ClassVar[str] = "ws://HOST:PORT"

    def __init__(self, connections: Connections, dialect: Dialect, url: str) -> None:
        self.spec, self.versions = dialect.spec, dialect.versions
        self._connections, self._dialect, self._url = connections, dialect, url

    @classmethod
    @contextmanager
    def opened(cls, locator: str, config: EvalConfig, /, **arguments: Any) -> Iterator[OpenpiPolicy]:
        """Connect, and read what the server says of itself. `arguments` are the fields of `Arguments`.

        Raises `UsageError` where an argument is wrong or no openpi server can be reached.
        """
        chosen, url = _arguments(arguments), _checked_url(locator)
        if find_spec("websockets") is None:
            raise UsageError(
                "policy openpi: websockets is missing; run: pip install 'rollout-engine[remote]'"
            )
        from rollout.policies.openpi_connections import Connections, Link, NoServer

        link = Link(
            url=url,
            connect_timeout_s=chosen.connect_timeout_s,
            timeout_s=chosen.timeout_s,
            max_frame=chosen.max_frame_mb << 20,
        )
        with Connections(link, _api_key(chosen.api_key_env)) as connections:
            try:
                connections.connect()
            except NoServer as exc:
                raise UsageError(f"policy 'openpi:{url}': {exc}") from exc
            yield cls(connections, _dialect(connections.metadata, chosen, url), url)

    def open_session(self, episode: EpisodeSpec, task: TaskInfo) -> Session:
        """What the server must be told of the episode; None where it takes no episodes."""
        return self._dialect.open_session(episode, task)

    def infer(self, requests: Sequence[Request]) -> Sequence[np.ndarray]:
        """One request to the server for each, one after the other. Raises `PolicyError` where it fails."""
        return [self._decide(request) for request in requests]

    def _decide(self, request: Request) -> np.ndarray:
        reply = self._connections.ask(packed(self._dialect.message(request)))
        if isinstance(reply, str):
            raise PolicyError(f"{self._blame(request)} failed:\n{_plain(reply)}")
        try:
            chunk = _actions(unpacked(reply))
        except ProtocolError as exc:
            raise PolicyError(f"{self._blame(request)} answered with {exc}") from exc
        self._dialect.answered(request.session)
        return chunk

    def _blame(self, request: Request) -> str:
        episode = f"{request.episode.suite} {request.episode.task} episode {request.episode.episode}"
        return f"the policy server at {self._url}, asked for {episode}, step {request.step},"


class OpenpiDialect:
    """One observation a request, under openpi's names, pictures in openpi's size. The server remembers nothing."""

    def __init__(self, arguments: Arguments, metadata: Any) -> None:
        self._keys = dict(LIBERO_KEYS if arguments.keys is None else arguments.keys)
        self._size = IMAGE_SIZE if arguments.image_size is None else arguments.image_size
        self.spec = PolicySpec(
            observation_keys=tuple(key for key in self._keys.values() if key != "task"),
            n_action_steps=None,
            calls=arguments.connections or 8,
            max_batch=1,
        )
        told = metadata.items() if isinstance(metadata, dict) else ()
        self.versions = {
            f"openpi.{key}": str(value)[:80] for key, value in told if isinstance(value, str | int)
        }

    def open_session(self, episode: EpisodeSpec, task: TaskInfo) -> Session:
        """Nothing."""
        return None

    def message(self, request: Request) -> dict[str, Any]:
        """The observation alone."""
        return {name: self._value(key, request.observation[key]) for name, key in self._keys.items()}

    def answered(self, session: Session) -> None:
        """Nothing to note."""

    def _value(self, key: str, value: Any) -> Any:
        if not self._size or not key.startswith("observation.images.") or not isinstance(value, np.ndarray):
            return value
        from rollout.envs.libero_cameras import padded

        return padded(value, self._size)


class RolloutDialect:
    """Everything that a policy in this process would get, so that it gives the same actions."""

    def __init__(self, arguments: Arguments, offer: Offer) -> None:
        calls = arguments.connections or 64
        self.spec = structs.replace(offer.spec, inline=False, calls=calls, max_batch=1)
        # `checkpoint` is what a resumed run must find again.
        told = {"served": offer.policy, "served by rollout": offer.rollout, "checkpoint": offer.identity}
        self.versions = offer.versions | told
        self._client, self._sessions = uuid.uuid4().hex, itertools.count()

    def open_session(self, episode: EpisodeSpec, task: TaskInfo) -> RemoteSession:
        """The server opens the policy's own session at the first request."""
        return RemoteSession(next(self._sessions), _encode(Opening(episode, task)))

    def message(self, request: Request) -> dict[str, Any]:
        """An `Asked`."""
        session: RemoteSession = request.session
        asked = Asked(
            self._client,
            session.index,
            session.number,
            request.decision,
            request.step,
            msgspec.Raw(session.opening),
            {key: pack(value) for key, value in request.observation.items()},
        )
        return {ENTRY: _encode(asked)}

    def answered(self, session: RemoteSession) -> None:
        """The next request is another one."""
        session.number += 1


class RemoteSession:
    """What a client remembers of an episode whose session is the server's."""

    __slots__ = ("index", "number", "opening")

    def __init__(self, index: int, opening: bytes) -> None:
        self.index, self.opening = index, opening
        self.number = 0  # of the next request


_encode = msgspec.msgpack.Encoder().encode


def _dialect(metadata: Any, arguments: Arguments, url: str) -> Dialect:
    try:
        offer = offered(metadata)
    except ProtocolError as exc:
        raise UsageError(f"policy 'openpi:{url}': {exc}; install the same rollout on both sides") from exc
    if offer is None:
        return OpenpiDialect(arguments, metadata)
    for name in ("keys", "image_size"):
        if getattr(arguments, name) is not None:
            raise UsageError(
                f"policy 'openpi:{url}': a rollout server says itself what it reads: leave out --policy-arg {name}"
            )
    return RolloutDialect(arguments, offer)


def _arguments(given: Mapping[str, Any]) -> Arguments:
    try:
        return msgspec.convert(given, Arguments)
    except msgspec.ValidationError as exc:
        known = ", ".join(Arguments.__struct_fields__)
        raise UsageError(f"policy openpi: {exc} (--policy-arg knows {known})") from exc


def _checked_url(locator: str) -> str:
    """The URL, which has nothing in it that a record must not hold."""
    if any(mark in locator for mark in "@?#"):  # before anything of it is shown
        raise UsageError(
            "policy openpi: give ws://HOST:PORT or wss://HOST:PORT alone, and an API key in the environment as "
            f"{KEY_VARIABLE}: a run's record holds the URL"
        )
    if "://" not in locator:
        raise UsageError(f"policy 'openpi:{locator}': give a URL, e.g. openpi:ws://{locator}")
    try:
        parts = urlsplit(locator)
        port = parts.port
    except ValueError as exc:
        raise UsageError(f"policy 'openpi:{locator}': not a URL: {exc}") from exc
    if parts.scheme not in ("ws", "wss") or not parts.hostname:
        raise UsageError(f"policy 'openpi:{locator}': give ws://HOST:PORT, or wss://HOST:PORT for TLS")
    host = f"[{parts.hostname}]" if ":" in parts.hostname else parts.hostname
    return f"{parts.scheme}://{host}:{port or (443 if parts.scheme == 'wss' else 80)}{parts.path}"


def _api_key(variable: str | None) -> str | None:
    key = os.environ.get(variable or KEY_VARIABLE)
    if not key:
        if variable is not None:
            raise UsageError(f"policy openpi: the environment variable {variable} (api_key_env) is not set")
        return None
    if not key.isascii() or not key.isprintable() or " " in key:
        raise UsageError(
            f"policy openpi: what {variable or KEY_VARIABLE} holds is not an API key: it has spaces or "
            "characters that no HTTP header can carry"
        )
    return key


def _actions(reply: Any) -> np.ndarray:
    """The chunk in a server's reply, as the server sent it. Raises `ProtocolError`."""
    if not isinstance(reply, dict):
        raise ProtocolError(f"{type(reply).__name__} instead of a map with an entry 'actions'")
    if "actions" not in reply:
        raise ProtocolError(f"a map without 'actions', of {', '.join(map(str, reply))[:200] or 'nothing'}")
    try:
        actions = np.asarray(reply["actions"])
    except ValueError as exc:
        raise ProtocolError(f"'actions' that are no array: {exc}") from exc
    if actions.dtype.kind not in "biuf":
        raise ProtocolError(f"'actions' of dtype {actions.dtype} instead of numbers")
    return actions


def _plain(text: str) -> str:
    """A stranger's text as it is, without what could steer a terminal."""
    return "".join(char for char in text[-SHOWN:] if char.isprintable() or char in "\n\t").rstrip()
