"""`openpi:ws://…` against a server that does what upstream's does, in a process of its own."""

from __future__ import annotations

import json
import logging
import socket
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from openpi_peers import libero_observation, request, upstream

import rollout
from rollout.errors import PolicyError, UsageError
from rollout.policies.base import Policy
from rollout.policies.load import as_policy

KEY = "sesame-1234"


@contextmanager
def policy(url: str, **arguments: Any) -> Iterator[Policy]:
    config = rollout.EvalConfig.create(targets=("libero:spatial",), policy_args=arguments)
    with as_policy(f"openpi:{url}", config) as made:
        yield made


def log(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


@pytest.fixture
def seen(tmp_path: Path) -> Path:
    return tmp_path / "seen"


def test_a_decision_is_openpis_observation_and_its_chunk_comes_back(openpi_path: str, seen: Path) -> None:
    observation = libero_observation(256)
    with upstream(openpi_path, "echo", str(seen)) as server, policy(server.url) as made:
        [chunk] = made.infer([request(observation)])
        keys, steps = made.spec.observation_keys, made.spec.n_action_steps
    expected = observation["observation.state"][0] + np.arange(5.0)[:, np.newaxis]
    np.testing.assert_array_equal(chunk, expected)
    assert keys == ("observation.images.image", "observation.images.image2", "observation.state")
    assert steps is None  # all that come back
    [asked] = log(seen)
    assert asked["shapes"] == {
        "observation/image": [224, 224, 3],
        "observation/wrist_image": [224, 224, 3],
        "observation/state": [8],
        "prompt": "pick up the black bowl",
    }


def test_pictures_are_resized_with_black_borders_or_left_alone(openpi_path: str, seen: Path) -> None:
    observation = {"observation.images.image": np.full((100, 200, 3), 200, np.uint8)}
    keys = {"observation/image": "observation.images.image", "observation/state": "observation.state"}
    observation["observation.state"] = np.zeros(8, np.float32)
    with upstream(openpi_path, "echo", str(seen)) as server:
        for size in (224, 0):
            with policy(server.url, keys=keys, image_size=size) as made:
                made.infer([request(observation)])
    padded, as_it_is = log(seen)
    assert padded["shapes"]["observation/image"] == [224, 224, 3]
    assert padded["means"]["observation/image"] == pytest.approx(100)  # half of it is border
    assert as_it_is["shapes"]["observation/image"] == [100, 200, 3]


def test_requests_fly_on_connections_of_their_own_and_all_are_closed_at_the_end(
    openpi_path: str,
    seen: Path,
) -> None:
    asked = [request({"observation.state": np.full(8, index)}) for index in range(12)]
    keys = {"observation/state": "observation.state"}
    before = threading.active_count()
    with upstream(openpi_path, "echo", str(seen)) as server:
        with policy(server.url, keys=keys, connections=3) as made, ThreadPoolExecutor(3) as threads:
            assert made.spec.calls == 3
            assert made.spec.max_batch == 1
            chunks = list(threads.map(lambda each: made.infer([each])[0], asked))
        assert [chunk[0, 0] for chunk in chunks] == list(range(12))
        with policy(server.url, keys=keys) as made:
            made.infer(asked[:1])
    *first, last = [entry["connected"] for entry in log(seen)]
    assert 1 <= max(first) <= 3
    assert last == 1  # those of the first policy are gone
    assert threading.active_count() == before


def test_a_whole_run_goes_through_a_server(openpi_path: str, tmp_path: Path) -> None:
    keys = {"observation/state": "observation.state", "prompt": "task"}
    with upstream(openpi_path, "echo") as server:
        plan: dict[str, Any] = {"targets": "gym:Pendulum-v1", "episodes": 4, "horizon": 20}
        arguments = {"keys": keys, "connections": 4}
        reports = [
            rollout.run(f"openpi:{server.url}", **plan, policy_args=arguments, workers=workers)
            for workers in (1, 4)
        ]
    first, second = ([episode.digest for episode in report.episodes] for report in reports)
    assert first == second
    assert reports[0].summary.timing.decisions == 4 * 20 / 5


def test_a_servers_traceback_is_shown_as_it_is(openpi_path: str) -> None:
    with (
        upstream(openpi_path, "fail") as server,
        policy(server.url) as made,
        pytest.raises(PolicyError) as caught,
    ):
        made.infer([request(libero_observation(), episode=3)])
    text = str(caught.value)
    assert "libero:spatial bowl episode 3" in text
    assert 'raise ValueError("no weights today")\nValueError: no weights today' in text


@pytest.mark.parametrize(
    ("behaviour", "message"),
    [("nothing", "without 'actions', of state"), ("text", "'actions' of dtype <U4")],
)
def test_an_answer_without_actions_is_the_servers_fault(
    openpi_path: str,
    behaviour: str,
    message: str,
) -> None:
    with (
        upstream(openpi_path, behaviour) as server,
        policy(server.url) as made,
        pytest.raises(PolicyError, match=rf"policy server at ws://.* {message}"),
    ):
        made.infer([request(libero_observation())])


def test_a_request_that_was_lost_is_sent_again(openpi_path: str, seen: Path) -> None:
    with upstream(openpi_path, "drop", str(seen)) as server, policy(server.url) as made:
        chunks = [made.infer([request(libero_observation(), decision=index)])[0] for index in range(3)]
    assert len(log(seen)) == 5  # the second decision was dropped twice
    for chunk in chunks[1:]:
        np.testing.assert_array_equal(chunk, chunks[0])


def test_a_server_that_is_gone_is_blamed(openpi_path: str) -> None:
    with upstream(openpi_path, "echo") as server, policy(server.url, timeout_s=1) as made:
        made.infer([request(libero_observation())])
        server.end()
        with pytest.raises(PolicyError, match="nothing listens there"):
            made.infer([request(libero_observation())])


def test_a_server_that_does_not_answer_is_asked_three_times(openpi_path: str) -> None:
    with (
        upstream(openpi_path, "slow") as server,
        policy(server.url, timeout_s=0.3, connect_timeout_s=2) as made,
        pytest.raises(
            PolicyError, match=r"no answer to a request within 0.3 s .*; then no answer within 2 s"
        ),
    ):
        made.infer([request(libero_observation())])


def test_a_frame_over_the_servers_limit_is_not_sent_again(openpi_path: str, seen: Path) -> None:
    with (
        upstream(openpi_path, "small", str(seen)) as server,
        policy(server.url) as made,
        pytest.raises(PolicyError, match=r"too long: the request has 0\.3 MiB"),
    ):
        made.infer([request(libero_observation())])
    assert not seen.exists()


def test_a_server_that_reads_nothing_does_not_hold_the_client_for_ever() -> None:
    with (
        _silent_server() as url,
        policy(url, timeout_s=0.5, image_size=0) as made,
        pytest.raises(PolicyError, match=r"connection was lost|no answer"),
    ):
        made.infer([request(libero_observation(2000))])


@contextmanager
def _silent_server() -> Iterator[str]:
    """Opens connections, sends metadata, and never reads a frame."""
    from websockets.server import ServerProtocol

    from rollout.policies.openpi_wire import packed

    kept = []

    def serve() -> None:
        while True:
            try:
                connection, _ = listener.accept()
            except OSError:
                return
            kept.append(connection)
            protocol = ServerProtocol()
            protocol.receive_data(connection.recv(65536))
            protocol.send_response(protocol.accept(protocol.events_received()[0]))  # type: ignore[arg-type]
            protocol.send_binary(packed({}))
            connection.sendall(b"".join(protocol.data_to_send()))

    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=serve)
        thread.start()
        yield f"ws://127.0.0.1:{listener.getsockname()[1]}"
        listener.shutdown(socket.SHUT_RDWR)
        thread.join(10)
    for connection in kept:
        connection.close()


def test_the_api_key_reaches_the_server_and_nothing_else(
    openpi_path: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    capfd: pytest.CaptureFixture[str],
) -> None:
    caplog.set_level(logging.DEBUG)
    monkeypatch.setenv("EXPECTED_KEY", KEY)
    keys = {"observation/state": "observation.state", "prompt": "task"}
    out = tmp_path / "out"
    with upstream(openpi_path, "echo") as server:
        with pytest.raises(
            UsageError, match=r"refused the API key, or asks for one \(HTTP 401\): set OPENPI_API_KEY"
        ):
            rollout.run(f"openpi:{server.url}", "gym:Pendulum-v1")
        monkeypatch.setenv("MY_KEY", KEY)
        arguments = {"keys": keys, "api_key_env": "MY_KEY"}
        plan: dict[str, Any] = {"episodes": 1, "horizon": 5, "workers": 1, "out": out, "display": "plain"}
        rollout.run(f"openpi:{server.url}", "gym:Pendulum-v1", **plan, policy_args=arguments)
        monkeypatch.setenv("OPENPI_API_KEY", KEY)
        with policy(server.url) as made:
            assert made.spec.calls == 8
    written = b"".join(path.read_bytes() for path in out.rglob("*") if path.is_file())
    assert b"MY_KEY" in written
    assert KEY.encode() not in written
    assert KEY not in caplog.text
    assert KEY not in "".join(capfd.readouterr())


@pytest.mark.parametrize(
    ("locator", "message"),
    [
        ("127.0.0.1:8000", r"give a URL, e.g. openpi:ws://127.0.0.1:8000"),
        ("http://127.0.0.1:8000", r"give ws://HOST:PORT, or wss://HOST:PORT for TLS"),
        ("ws://", "give ws://HOST:PORT"),
        ("ws://127.0.0.1:99999", "not a URL: Port out of range"),
        ("ws://user:secret@127.0.0.1:8000", "an API key in the environment as OPENPI_API_KEY"),
        ("ws://127.0.0.1:8000?key=secret", "an API key in the environment as OPENPI_API_KEY"),
        ("ws://user:secret@127.0.0.1:99999", "an API key in the environment as OPENPI_API_KEY"),
        ("user:secret@127.0.0.1:80", "an API key in the environment as OPENPI_API_KEY"),
        ("127.0.0.1:80#secret", "an API key in the environment as OPENPI_API_KEY"),
        ("ws://127.0.0.1:1", "nothing listens there"),
        ("ws://there-is-no-such-host.invalid:1", "there is no such host"),
    ],
)
def test_a_wrong_address_is_one_line_that_says_what_to_do(locator: str, message: str) -> None:
    with pytest.raises(UsageError, match=message) as caught, policy(locator):
        pass
    assert "\n" not in str(caught.value)
    assert "secret" not in str(caught.value)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"connections": 0}, r"`int` >= 1 - at `\$.connections`"),
        ({"conections": 4}, "unknown field `conections`.*knows connections, keys"),
        ({"keys": ["prompt"]}, r"got `array` - at `\$.keys`"),
        ({"timeout_s": 0}, "`float` > 0"),
        ({"api_key_env": "NO_SUCH_KEY"}, "variable NO_SUCH_KEY .* is not set"),
    ],
)
def test_a_wrong_argument_is_named(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message), policy("ws://127.0.0.1:1", **arguments):
        pass


def test_a_key_that_no_header_can_carry_is_refused_without_being_shown(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("OPENPI_API_KEY", "se\r\ncret")
    with pytest.raises(UsageError, match="OPENPI_API_KEY") as caught, policy("ws://127.0.0.1:1"):
        pass
    assert "cret" not in str(caught.value)


def test_a_server_that_begins_with_something_else_is_not_openpis(openpi_path: str) -> None:
    began = "does not speak openpi's protocol: it began with 'hello'"
    with (
        upstream(openpi_path, "greet") as server,
        pytest.raises(UsageError, match=began),
        policy(server.url),
    ):
        pass


def test_what_answers_without_being_a_websocket_server_is_told_from_one() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=_answer_as_ssh, args=(listener,))
        thread.start()
        url = f"ws://127.0.0.1:{listener.getsockname()[1]}"
        with pytest.raises(UsageError, match="not a websocket server"), policy(url):
            pass
        thread.join(10)


def _answer_as_ssh(listener: socket.socket) -> None:
    connection, _ = listener.accept()
    with connection:
        connection.recv(65536)
        connection.sendall(b"SSH-2.0-OpenSSH_9.6\r\n")


def test_a_port_that_never_answers_is_given_up() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        url = f"ws://127.0.0.1:{listener.getsockname()[1]}"
        with pytest.raises(UsageError, match=r"no answer within 0\.3 s"), policy(url, connect_timeout_s=0.3):
            pass
