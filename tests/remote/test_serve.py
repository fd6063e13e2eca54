"""`rollout serve`, in a process of its own, with openpi's client and ours on the other side."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import contextmanager
from importlib.metadata import version
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from openpi_peers import DEADLINE_S, ROLLOUT, TASK, Peer, openpi_client, request, search_path, serving
from served_policies import Dying, Wandering
from websockets.exceptions import ConnectionClosed, InvalidStatus
from websockets.sync.client import ClientConnection, connect

import rollout
from rollout.errors import PolicyError, UsageError
from rollout.policies.load import as_policy
from rollout.policies.offer import Asked, Opening
from rollout.policies.openpi_wire import packed, unpacked
from rollout.testing import PolicyContract
from rollout.values import pack

KEY = "sesame-1234"
CONFIG = rollout.EvalConfig.create(targets=("gym:Pendulum-v1",))
FIRST: dict[str, Any] = {"n_action_steps": 1, "episodes": 2}
PENDULUM: dict[str, Any] = {"targets": "gym:Pendulum-v1", "episodes": 6, "horizon": 40}


def digests(policy: Any, **settings: Any) -> list[str | None]:
    return [episode.digest for episode in rollout.run(policy, **{**PENDULUM, **settings}).episodes]


@contextmanager
def connected(url: str, **options: Any) -> Iterator[ClientConnection]:
    """A bare connection, past the metadata."""
    with connect(url, compression=None, proxy=None, max_size=None, **options) as connection:
        connection.recv(timeout=DEADLINE_S)
        yield connection


def ask(connection: ClientConnection, message: Any) -> Any:
    """The decoded reply, or the text of an error."""
    connection.send(message if isinstance(message, bytes | str) else packed(message))
    reply = connection.recv(timeout=DEADLINE_S)
    return reply if isinstance(reply, str) else unpacked(reply)


def close_code(connection: ClientConnection) -> int | None:
    with pytest.raises(ConnectionClosed):
        connection.recv(timeout=DEADLINE_S)
    return connection.close_code


@pytest.fixture(scope="module")
def plain() -> Iterator[Peer]:
    """A stateless policy, offered to everybody."""
    with serving("served_policies:Plain") as server:
        yield server


@pytest.fixture(scope="module")
def wandering() -> Iterator[Peer]:
    """A policy that needs to know episodes."""
    with serving("served_policies:Wandering") as server:
        yield server


# openpi's own client


def test_openpis_client_gets_the_actions(openpi_path: str) -> None:
    state = [1.0, 2.0, 3.0]
    message = {
        "observation/image": 100,
        "observation/wrist_image": 1,
        "observation/state": state,
        "prompt": "go",
    }
    ours = {"observation.images.image": 50, "observation.state": state, "task": "go"}
    with serving("served_policies:Plain", "--policy-arg", "image=true") as server:
        metadata, *replies = openpi_client(openpi_path, server.url, message, message, ours)
    assert metadata["rollout"]["policy"] == "served_policies:Plain"
    for reply, mean in zip(replies, (100, 100, 50), strict=True):
        assert reply["actions"] == [[1.0 + mean, 2.0 + mean, 3.0 + mean], [2 * (x + mean) for x in state]]
        assert reply["server_timing"]["infer_ms"] >= reply["policy_timing"]["infer_ms"] >= 0
        assert reply["server_timing"]["batch"] == 1


def test_openpis_client_sees_the_policys_traceback(openpi_path: str, plain: Peer) -> None:
    good, bad = ({"observation/state": [1.0], "prompt": prompt} for prompt in ("go", "fail"))
    _, first, error = openpi_client(openpi_path, plain.url, good, bad)
    assert first["actions"] == [[1.0], [2.0]]
    assert error.startswith("Error in inference server:\nTraceback (most recent call last):")
    assert error.endswith("ValueError: no weights today")
    assert "ValueError: no weights today" in plain.stderr
    assert openpi_client(openpi_path, plain.url, good)[1]["actions"] == first["actions"]


def test_openpis_client_is_told_what_the_policy_reads(openpi_path: str, plain: Peer) -> None:
    _, error = openpi_client(openpi_path, plain.url, {"observation/position": [1.0], "prompt": "go"})
    assert "reads observation.state, and the request has observation/position, task" in error


def test_openpis_client_is_served_by_a_policy_that_compares_spaces(openpi_path: str) -> None:
    with serving("served_policies:Compared") as server:
        _, reply = openpi_client(openpi_path, server.url, {"observation/state": [1.0], "prompt": "go"})
    assert reply["actions"] == [[1.0], [2.0]]


@pytest.mark.parametrize("prompt", ["go", "far"])
def test_openpis_client_gets_no_actions_that_are_not_finite(openpi_path: str, prompt: str) -> None:
    message = {"observation/state": [1.0], "prompt": prompt}
    with serving("served_policies:Broken") as server:
        _, error = openpi_client(openpi_path, server.url, message)
    assert "the policy's action chunk has numbers that are not finite" in error


def test_our_client_may_get_numbers_that_it_does_not_execute() -> None:
    with serving("served_policies:Broken") as server:
        assert digests(f"openpi:{server.url}", **FIRST) == digests("served_policies:Broken", **FIRST)


def test_names_of_observations_can_be_mapped(openpi_path: str) -> None:
    mapping = "observation/position=observation.state"
    with serving("served_policies:Plain", "--observation", mapping) as server:
        _, reply = openpi_client(openpi_path, server.url, {"observation/position": [1.0], "prompt": "go"})
    assert reply["actions"] == [[1.0], [2.0]]


def test_a_policy_that_needs_episodes_is_not_for_clients_that_have_none(
    openpi_path: str, wandering: Peer
) -> None:
    _, error = openpi_client(openpi_path, wandering.url, {"observation/state": [1.0, 2.0, 3.0]})
    assert "needs the last 2 observations, and openpi's protocol knows no episodes" in error
    assert "Traceback" not in error


def test_the_api_key_is_asked_for(openpi_path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with serving("served_policies:Plain", "--api-key-env", "SERVER_KEY", SERVER_KEY=KEY) as server:
        assert openpi_client(openpi_path, server.url, {"observation/state": [1.0]}, key=KEY)[1]["actions"]
        for headers in (None, {"Authorization": "Api-Key wrong"}, {"Authorization": f"Bearer {KEY}"}):
            with pytest.raises(InvalidStatus, match="401"), connected(server.url, additional_headers=headers):
                pass
        with pytest.raises(UsageError, match="set OPENPI_API_KEY"):
            digests(f"openpi:{server.url}")
        monkeypatch.setenv("OPENPI_API_KEY", KEY)
        with as_policy(f"openpi:{server.url}", CONFIG) as policy:
            assert policy.spec.observation_keys == ("observation.state",)
        server.end()
        assert KEY not in server.stderr
        assert server.process.stdout is not None
        assert KEY not in server.process.stdout.read()


# ours


@pytest.mark.parametrize("workers", [1, 3])
def test_our_client_gets_the_episodes_that_the_policy_gives_in_process(wandering: Peer, workers: int) -> None:
    assert digests(f"openpi:{wandering.url}", workers=workers) == digests(Wandering(), workers=1)


def test_several_runs_at_once_share_a_server(wandering: Peer) -> None:
    with ThreadPoolExecutor(2) as runs:
        found = list(runs.map(lambda _: digests(f"openpi:{wandering.url}", workers=2), range(2)))
    assert found == [digests(Wandering(), workers=1)] * 2


@pytest.mark.parametrize("space", ["box", "discrete", "multi"])
def test_every_kind_of_observation_arrives_as_it_is(space: str) -> None:
    target: dict[str, Any] = {"targets": "gym:toys:toy/Echo-v0", "options": {"space": space}, "workers": 1}
    with serving("served_policies:Echoing") as server:
        assert digests(f"openpi:{server.url}", **target) == digests("served_policies:Echoing", **target)


def test_our_client_takes_over_what_the_policy_says_of_itself(wandering: Peer) -> None:
    with as_policy(f"openpi:{wandering.url}", CONFIG) as policy:
        expected = msgspec.structs.replace(Wandering.spec, calls=64, max_batch=1)
        assert policy.spec == expected
        versions = dict(getattr(policy, "versions", {}))
    assert len(versions.pop("checkpoint")) == 32
    assert versions == {
        "served": "served_policies:Wandering",
        "served by rollout": version("rollout-engine"),
    }


def test_a_run_is_not_gone_on_with_at_a_server_of_another_policy(tmp_path: Path) -> None:
    plan: dict[str, Any] = {"out": tmp_path / "out", "workers": 1, "episodes": 1}
    with serving("served_policies:Wandering") as server:
        digests(f"openpi:{server.url}", **plan)
        server.end()
        with (
            serving("served_policies:Failing", port=server.port),
            pytest.raises(UsageError, match="checkpoint"),
        ):
            digests(f"openpi:{server.url}", **plan, resume=True)


def test_a_policys_exception_ends_the_run_and_not_the_server() -> None:
    with serving("served_policies:Failing") as server:
        for _ in range(2):
            with pytest.raises(
                PolicyError, match=r"asked for gym:Pendulum-v1 [\s\S]*ValueError: at step 3"
            ) as caught:
                digests(f"openpi:{server.url}", workers=2)
            assert "Traceback (most recent call last)" in str(caught.value)


def test_actions_that_are_no_array_are_refused() -> None:
    with (
        serving("served_policies:Nested") as server,
        pytest.raises(PolicyError, match="not an array of numbers"),
    ):
        digests(f"openpi:{server.url}", workers=1)


def asked(number: int, *, client: str = "me", session: int = 0, velocity: float = 1.0) -> dict[str, Any]:
    opening = msgspec.msgpack.encode(Opening(request({}).episode, TASK))
    state = np.array([[0.0, 0.0, velocity]] * 2, np.float32)
    observation = {"observation.state": pack(state), "task": "go"}
    message = Asked(client, session, number, number, 2 * number, msgspec.Raw(opening), observation)
    return {"rollout": msgspec.msgpack.encode(message)}


def test_a_request_that_is_sent_again_is_answered_again_and_decided_once(wandering: Peer) -> None:
    with connected(wandering.url) as one:
        first = [ask(one, asked(number, client="a")) for number in range(2)]
    with connected(wandering.url) as one, connected(wandering.url) as other:
        second = [ask(one, asked(0, client="b")), ask(other, asked(0, client="b"))]
        second += [ask(one, asked(1, client="b")), ask(other, asked(1, client="b"))]
    for index, reply in enumerate(second):
        np.testing.assert_array_equal(reply["actions"], first[index // 2]["actions"])
    assert not np.array_equal(first[0]["actions"], first[1]["actions"])


def test_an_episode_whose_memory_is_lost_is_not_gone_on_with(wandering: Peer) -> None:
    with connected(wandering.url) as connection:
        error = ask(connection, asked(3, client="unheard-of"))
        assert "no longer knows this episode" in error
        assert close_code(connection) == 1011


def test_sessions_of_clients_are_their_own(wandering: Peer) -> None:
    with connected(wandering.url) as one, connected(wandering.url) as other:
        ask(one, asked(0, client="c", velocity=5.0))
        fresh = ask(other, asked(0, client="d"))
        again = ask(one, asked(0, client="c", session=1))
    np.testing.assert_array_equal(fresh["actions"], again["actions"])


@pytest.mark.parametrize("remembers", [False, True])
def test_a_server_that_is_started_again_is_found_again_unless_the_policy_remembers(
    remembers: bool, tmp_path: Path
) -> None:
    once = tmp_path / "once"
    arguments = {"at": 5, "once": str(once), "remembers": remembers}
    options = [f"--policy-arg={key}={json.dumps(value)}" for key, value in arguments.items()]
    with (
        serving("served_policies:Dying", *options) as server,
        as_policy(f"openpi:{server.url}", CONFIG.replaced(policy_args={"timeout_s": 1})) as policy,
    ):
        session = policy.open_session(request({}).episode, TASK)
        state = {"observation.state": np.ones(3, np.float32)}
        for decision in range(5):
            policy.infer([request(state, session, decision)])
        with pytest.raises(PolicyError, match=r"connection was lost .*nothing listens there"):
            policy.infer([request(state, session, 5)])
        assert server.process.wait(DEADLINE_S) == 9
        with (
            serving("served_policies:Dying", *options, port=server.port),
            as_policy(f"openpi:{server.url}", CONFIG),  # it answers by now
        ):
            if remembers:
                with pytest.raises(PolicyError, match="no longer knows this episode"):
                    policy.infer([request(state, session, 5)])
            else:
                [chunk] = policy.infer([request(state, session, 5)])
                assert chunk.tolist() == [[1.0]]


def test_a_run_goes_on_when_its_server_is_back(tmp_path: Path) -> None:
    once = tmp_path / "once"
    options = ["--policy-arg=at=20", f"--policy-arg=once={once}"]
    with serving("served_policies:Dying", *options) as server, ThreadPoolExecutor(1) as runs:
        run = runs.submit(digests, f"openpi:{server.url}", workers=2)
        assert server.process.wait(DEADLINE_S) == 9
        assert not wait([run], 2.5).done  # more than three tries in a row would take
        with serving("served_policies:Dying", *options, port=server.port):
            found = run.result(DEADLINE_S)
    assert found == digests(Dying(20, str(once)), workers=1)


@pytest.mark.parametrize("key", [KEY, "another"])
def test_a_key_that_a_new_server_refuses_is_not_tried_again(
    key: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    option = ("--api-key-env", "SERVER_KEY")
    monkeypatch.setenv("OPENPI_API_KEY", KEY)
    with (
        serving("served_policies:Plain", *option, SERVER_KEY=KEY) as server,
        as_policy(f"openpi:{server.url}", CONFIG) as policy,
    ):
        server.end()
        with serving("served_policies:Plain", *option, port=server.port, SERVER_KEY=key) as again:
            session = policy.open_session(request({}).episode, TASK)
            asked = [request({"observation.state": np.ones(3, np.float32)}, session)]
            if key == KEY:
                assert len(policy.infer(asked)) == 1
                return
            with pytest.raises(PolicyError, match="refused the API key"):
                policy.infer(asked)
            again.end()
            assert "connections: 0" in again.stderr


def test_another_policy_at_the_same_address_is_not_taken_for_the_first() -> None:
    with serving("served_policies:Plain") as server, as_policy(f"openpi:{server.url}", CONFIG) as policy:
        server.end()
        with serving("served_policies:Wandering", port=server.port):
            session = policy.open_session(request({}).episode, TASK)
            with pytest.raises(PolicyError, match="was replaced"):
                policy.infer([request({"observation.state": np.ones(3, np.float32)}, session)])


class TestServed(PolicyContract):
    """The contract of policies, kept through the network."""

    target = "gym:Pendulum-v1"

    @pytest.fixture(autouse=True, scope="class")
    @classmethod
    def served(cls, wandering: Peer) -> None:
        cls.policy = f"openpi:{wandering.url}"


# batches


def test_requests_of_several_clients_share_a_forward(tmp_path: Path) -> None:
    sizes = tmp_path / "sizes"
    with serving("served_policies:Slow", "--policy-arg", f"log={sizes}") as server:

        def run(index: int) -> list[Any]:
            with connected(server.url) as connection:
                message = {"observation/state": np.full(1, float(index)), "prompt": "go"}
                return [ask(connection, message) for _ in range(6)]

        with ThreadPoolExecutor(4) as clients:
            replies = list(clients.map(run, range(4)))
        server.end()
        assert "24 decisions in" in server.stderr
    batches = [int(line) for line in sizes.read_text().split()]
    assert sum(batches) == 24
    assert max(batches) > 1
    for index, own in enumerate(replies):
        assert [reply["actions"].tolist() for reply in own] == [[[index], [2 * index]]] * 6
    assert max(reply["server_timing"]["batch"] for own in replies for reply in own) == max(batches)


def test_max_batch_is_kept_to(tmp_path: Path) -> None:
    sizes = tmp_path / "sizes"
    options = ["--policy-arg", f"log={sizes}", "--max-batch", "2"]
    with serving("served_policies:Slow", *options) as server:

        def run(index: int) -> None:
            with connected(server.url) as connection:
                for _ in range(4):
                    ask(connection, {"observation/state": np.ones(1), "prompt": "go"})

        with ThreadPoolExecutor(5) as clients:
            list(clients.map(run, range(5)))
    assert max(int(line) for line in sizes.read_text().split()) == 2


def test_observations_of_unlike_shapes_share_no_forward() -> None:
    with serving("served_policies:Alike") as server:

        def run(length: int) -> list[Any]:
            with connected(server.url) as connection:
                message = {"observation/state": np.ones(length), "prompt": "go"}
                return [ask(connection, message)["actions"].shape for _ in range(6)]

        with ThreadPoolExecutor(4) as clients:
            assert list(clients.map(run, (2, 3, 2, 5))) == [[(1, n)] * 6 for n in (2, 3, 2, 5)]


# clients that do wrong

OBJECTS = {b"__ndarray__": True, b"dtype": "|O", b"shape": [1], b"data": b"\0" * 8}


@pytest.mark.parametrize(
    ("message", "error"),
    [
        (b"\xc1 garbage", "not a MessagePack message"),
        (b"", "not a MessagePack message"),
        ("text", "must be a binary frame"),
        (packed([1, 2]), "must be a map of observations, not list"),
        (msgspec.msgpack.encode({"observation/state": OBJECTS}), r"'|O' is not the dtype|only numbers"),
        (
            packed({"observation/state": {"nested": 1}}),
            "observation.state must be an array or text, not dict",
        ),
        (packed({"observation/state": np.ones(1), "prompt": 3}), "the instruction must be text"),
        (packed({"rollout": b"garbage"}), "the entry 'rollout' of the request"),
        (packed({"rollout": 3}), "the entry 'rollout' of the request"),
    ],
)
def test_garbage_ends_that_connection_and_no_other(plain: Peer, message: bytes | str, error: str) -> None:
    good = {"observation/state": np.ones(1), "prompt": "go"}
    with connected(plain.url) as bystander, connected(plain.url) as connection:
        told = ask(connection, message)
        assert isinstance(told, str)
        assert any(part in told for part in error.split("|"))
        assert "Traceback" not in told
        assert close_code(connection) == 1011
        assert ask(bystander, good)["actions"].tolist() == [[1.0], [2.0]]


def test_a_frame_over_the_limit_ends_that_connection_and_no_other() -> None:
    with serving("served_policies:Plain", "--max-frame-mb", "1") as server:
        with connected(server.url) as bystander, connected(server.url) as connection:
            connection.send(bytes((1 << 20) + 1))
            assert close_code(connection) == 1009
            assert ask(bystander, {"observation/state": np.ones(1)})["actions"].tolist() == [[1.0], [2.0]]
        big = {"observation.state": np.zeros(1 << 18)}
        with as_policy(f"openpi:{server.url}", CONFIG) as policy:
            session = policy.open_session(request({}).episode, TASK)
            with pytest.raises(PolicyError, match=r"too long: the request has 2\.0 MiB"):
                policy.infer([request(big, session)])


def test_a_web_page_cannot_connect(plain: Peer) -> None:
    with pytest.raises(InvalidStatus, match="403"), connected(plain.url, origin="http://example.org"):
        pass


def test_a_health_check_is_answered(plain: Peer) -> None:
    with urllib.request.urlopen(plain.url.replace("ws://", "http://") + "/healthz", timeout=30) as answer:
        assert (answer.status, answer.read().strip()) == (200, b"OK")


def test_what_is_not_websocket_is_answered_without_noise(plain: Peer) -> None:
    before = plain.stderr
    for data in (b"GET / HTTP/1.1\r\nHost: x\r\n\r\n", b"\x16\x03\x01\x02\x00\x01", b""):
        with socket.create_connection(("127.0.0.1", plain.port), timeout=30) as connection:
            connection.sendall(data)
            connection.shutdown(socket.SHUT_WR)
            connection.recv(65536)
    assert plain.stderr == before


# its own end


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_ends_it_in_good_order_even_while_the_policy_is_busy(
    number: signal.Signals, code: int, tmp_path: Path
) -> None:
    log = tmp_path / "log"
    os.mkfifo(log)  # opening it waits for the policy
    options = ["--policy-arg", f"log={log}", "--policy-arg", "seconds=30"]
    with serving("served_policies:Slow", *options) as server, connected(server.url) as connection:
        connection.send(packed({"observation/state": np.ones(1)}))
        assert log.read_text() == "1\n"
        assert server.end(number) == code
        assert close_code(connection) == 1001
        assert "Traceback" not in server.stderr
        assert server.stderr.splitlines()[-1] == f"rollout: stopped by {number.name}"


def test_a_port_that_is_taken_is_one_line(plain: Peer) -> None:
    command = ["served_policies:Plain", "--port", str(plain.port)]
    done = run_serve(*command)
    assert done.returncode == 2
    assert done.stderr == (
        f"rollout: cannot listen at 127.0.0.1:{plain.port}: Address already in use; "
        "--port 0 takes any that is free\n"
    )


def test_a_port_is_taken_as_soon_as_a_policy_begins_to_load_and_clients_wait_for_it(tmp_path: Path) -> None:
    at = tmp_path / "pipe"
    os.mkfifo(at)
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    arguments = ["served_policies:Loading", "--policy-arg", f"at={at}", "--port", str(port)]
    command, environ = [ROLLOUT, "serve", "--policy", *arguments], {**os.environ, "PYTHONPATH": search_path()}
    with subprocess.Popen(command, env=environ, stdout=subprocess.DEVNULL) as first:
        try:
            assert at.read_text() == "loading"
            done = run_serve("served_policies:Plain", "--port", str(port))
            with ThreadPoolExecutor(1) as clients:
                client = clients.submit(lambda: digests(f"openpi:ws://127.0.0.1:{port}", **FIRST))
                assert not wait([client], 0.5).done
                at.write_text("go on")
                found = client.result(DEADLINE_S)
        finally:
            first.kill()
    assert done.returncode == 2
    assert done.stderr.startswith(f"rollout: cannot listen at 127.0.0.1:{port}: Address already in use")
    assert done.stderr.count("\n") == 1
    assert found == digests("served_policies:Single", **FIRST)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("served_policies:Nope",), "has no 'Nope'"),
        (("random", "--target", "metawrld:mt10"), "did you mean 'metaworld:mt10'"),
        (("random", "--host", "there-is-no-such-host.invalid"), "--host there-is-no-such-host.invalid:"),
        (
            ("random", "--api-key-env", "NO_SUCH_KEY"),
            "--api-key-env NO_SUCH_KEY: set that environment variable",
        ),
        (("random", "--observation", "state"), "give THEIRS=OURS"),
    ],
)
def test_a_wrong_option_is_one_line_that_says_what_to_do(options: tuple[str, ...], message: str) -> None:
    done = run_serve(*options)
    assert done.returncode == 2
    assert message in done.stderr
    assert done.stderr.count("\n") == 1


def run_serve(policy: str, *options: str) -> subprocess.CompletedProcess[str]:
    """A server that is not expected to come up."""
    command = [ROLLOUT, "serve", "--policy", policy, *options]
    environ = {**os.environ, "PYTHONPATH": search_path()}
    return subprocess.run(
        command, env=environ, capture_output=True, text=True, check=False, timeout=DEADLINE_S
    )
