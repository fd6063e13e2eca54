"""What a server remembers of its clients, without any network."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest
from openpi_peers import TASK, request

from rollout.errors import PolicyError, ProtocolError
from rollout.policies.lerobot_keys import wanted_keys
from rollout.policies.offer import Asked, Opening
from rollout.serve.options import Serving
from rollout.serve.sessions import Presence, Sessions

OPTIONS: dict[str, Any] = {"policy": "random", "api_key_env": None, "max_frame_mb": 1, "observation": ()}
OPENING = msgspec.Raw(msgspec.msgpack.encode(Opening(request({}).episode, TASK)))


def asked(client: str, session: int, number: int = 0) -> Asked:
    return Asked(client, session, number, number, number, OPENING, {})


def sessions(limit: int = 10, *, remembers: bool = True) -> tuple[Sessions, list[Any]]:
    """Sessions, and a list of those that were opened."""
    opened: list[Any] = []

    def open_session(episode: Any, task: Any) -> Any:
        opened.append((episode, task))
        return {} if remembers else None

    return Sessions(open_session, limit), opened


def test_a_session_is_opened_once_with_the_episode_and_its_task() -> None:
    found, opened = sessions()
    state = found.find(asked("a", 0))
    state.number = 0
    assert found.find(asked("a", 0, 0)) is state
    assert found.find(asked("a", 0, 1)) is state
    assert opened == [(request({}).episode, TASK)]


def test_a_session_that_cancels_itself_is_the_policys_failure() -> None:
    def opened(*_: Any) -> Any:
        raise asyncio.CancelledError("gone")

    with pytest.raises(PolicyError, match="open_session raised CancelledError: gone"):
        Sessions(opened).find(asked("a", 0))


def test_a_request_out_of_turn_is_refused() -> None:
    found, _ = sessions()
    found.find(asked("a", 0)).number = 0
    with pytest.raises(ProtocolError, match="request 2 of its session came after request 0"):
        found.find(asked("a", 0, 2))


def test_the_session_that_was_not_used_for_longest_is_forgotten_first() -> None:
    found, _ = sessions(limit=2)
    first = found.find(asked("a", 0))
    found.find(asked("a", 1))
    assert found.find(asked("a", 0)) is first
    found.find(asked("a", 2))
    assert len(found) == 2
    assert found.find(asked("a", 0)) is first
    with pytest.raises(ProtocolError, match="no longer knows this episode"):
        found.find(asked("a", 1, 1))


def test_a_policy_that_remembers_nothing_can_forget_its_sessions() -> None:
    found, _ = sessions(remembers=False)
    assert found.find(asked("a", 0, 7)).number == 6


def test_a_client_is_forgotten_without_the_others() -> None:
    found, _ = sessions()
    for client in "aab":
        found.find(asked(client, len(found)))
    found.forget("a")
    assert len(found) == 1


def test_a_client_has_left_with_its_last_connection() -> None:
    left: list[str] = []
    presence = Presence(left.append)
    for client in "aba":
        presence.joined(client)
    presence.parted("a")
    assert left == []
    assert "a" in presence
    presence.parted("a")
    assert left == ["a"]
    assert "a" not in presence
    assert "b" in presence


@pytest.mark.parametrize(
    ("host", "key", "exposed"),
    [
        ("127.0.0.1", None, False),
        ("127.8.8.8", None, False),
        ("::1", None, False),
        ("localhost", None, False),
        ("0.0.0.0", None, True),
        ("::", None, True),
        ("10.0.0.7", None, True),
        ("gpu-box", None, True),
        ("0.0.0.0", b"sesame", False),
    ],
)
def test_a_server_that_strangers_reach_without_a_key_is_exposed(
    host: str, key: bytes | None, exposed: bool
) -> None:
    serving = Serving.create(host=host, port=0, **OPTIONS)
    serving.key = key
    assert serving.is_exposed is exposed


@pytest.mark.parametrize(
    ("targets", "key"),
    [
        ((), "observation.images.image"),
        (("metaworld:mt10",), "observation.images.corner2"),
        (("metaworld:mt10", "metaworld:mt50"), "observation.images.corner2"),
        (("libero:spatial",), "observation.images.image"),
    ],
)
def test_a_policys_keys_are_those_of_the_targets_that_its_clients_run(
    targets: tuple[str, ...], key: str
) -> None:
    config = Serving.create(host="127.0.0.1", port=0, target=targets, **OPTIONS).config
    picture = SimpleNamespace(type="VISUAL", shape=(3, 480, 480))
    [wanted] = wanted_keys({"observation.image": picture}, {}, {}, (), config, empty_cameras=False)
    assert wanted.key == key
    assert len(config.targets) > 1  # or a module would settle on the keys of whom it serves first
