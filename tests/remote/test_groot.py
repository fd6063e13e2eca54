"""`gr00t:tcp://HOST:PORT` against a real server of the protocol, in a process of its own."""

from __future__ import annotations

import gc
import json
import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest

import rollout
from rollout import EvalConfig
from rollout.errors import PolicyError, UsageError
from rollout.policies.base import Request
from rollout.policies.load import as_policy
from rollout.testing import PolicyContract
from rollout.types import EpisodeSpec

pytest.importorskip("zmq")
pytest.importorskip("msgpack")

HERE = Path(__file__).parent
COUNT, WIDE = "gym:toys:toy/Count-v0", "gym:groot_toys:toy/Wide-v0"
KEYS = {"state.a": "observation.state[0:1]", "state.b": "observation.state[1:2]"}
SPEC = EpisodeSpec(suite="s", task="t", task_id=0, episode=0, seed=0, horizon=1)


class Served:
    """A running server."""

    def __init__(self, process: subprocess.Popen[str], log: Path) -> None:
        assert process.stdout is not None
        self.process, self._log = process, log
        self.spec = f"gr00t:tcp://127.0.0.1:{int(process.stdout.readline())}"

    def asked(self, endpoint: str) -> list[dict[str, Any]]:
        lines = map(json.loads, self._log.read_text().splitlines())
        return [line for line in lines if line["endpoint"] == endpoint]


Serve = Callable[..., AbstractContextManager[Served]]


@pytest.fixture
def serve(tmp_path: Path) -> Serve:
    @contextmanager
    def serving(**settings: Any) -> Iterator[Served]:
        log = tmp_path / "server.log"
        log.touch()
        command = [sys.executable, str(HERE / "groot_server.py"), json.dumps({"log": str(log), **settings})]
        with subprocess.Popen(
            command, stdout=subprocess.PIPE, text=True, stdin=subprocess.DEVNULL
        ) as process:
            try:
                yield Served(process, log)
            finally:
                process.kill()

    return serving


@contextmanager
def policy(served: Served | str, target: str = COUNT, **arguments: Any) -> Iterator[Any]:
    arguments = {"keys": KEYS, "timeout_s": 20, **arguments}
    config = EvalConfig.create(targets=(target,), policy_args=arguments)
    with as_policy(served if isinstance(served, str) else served.spec, config) as opened:
        yield opened


def ask(*rows: tuple[float, float, str], **more: Any) -> list[Request]:
    """Requests with state (a, b) and an instruction."""
    return [
        Request(
            SPEC,
            None,  # type: ignore[arg-type]  # the policy never looks at the task
            0,
            0,
            None,
            {"observation.state": np.array(row[:2], np.float32), "task": row[2]} | more,
        )
        for row in rows
    ]


def expected(*rows: tuple[float, float, str], chunk: int = 3) -> Any:
    return [[[a + step / 1000, b, len(text) / 100] for step in range(chunk)] for a, b, text in rows]


ROWS = ((0.25, -0.5, "pick it up"), (0.75, 0.125, "put it down again"), (-1.0, 0.0, ""))


@pytest.mark.parametrize("arrays", ["npy", "msgpack"])
@pytest.mark.parametrize("layout", ["nested", "flat"])
def test_one_request_carries_the_whole_batch_and_each_row_gets_its_own_chunk(
    serve: Serve, arrays: str, layout: str
) -> None:
    with serve(arrays=arrays, layout=layout) as server, policy(server) as groot:
        for _ in range(2):
            np.testing.assert_allclose(groot.infer(ask(*ROWS)), expected(*ROWS), atol=1e-6)
        reversed_rows = ROWS[::-1]
        np.testing.assert_allclose(groot.infer(ask(*reversed_rows)), expected(*reversed_rows), atol=1e-6)
        np.testing.assert_allclose(groot.infer(ask(ROWS[0])), expected(ROWS[0]), atol=1e-6)
    asked = server.asked("get_action")
    assert [each["rows"] for each in asked] == [3, 3, 3, 1]
    assert {each["arrays"] for each in asked} == {arrays}
    assert len(server.asked("reset")) == 1  # before the first episode, and never for one of several


def test_the_spec_is_what_the_server_says_of_itself(serve: Serve) -> None:
    keys = {"state.a": "observation.state[0:1]", "state.b": "observation.extra"}
    with serve(chunk=16, steps=[-2, 0], cameras=["front"]) as server, policy(server, keys=keys) as groot:
        spec = groot.spec
    assert spec.observation_keys == ("observation.images.front", "observation.state", "observation.extra")
    assert (spec.n_obs_steps, spec.chunk_size, spec.n_action_steps) == (3, 16, None)


def test_pictures_and_history_arrive_as_the_server_asks_for_them(serve: Serve) -> None:
    state = np.array([[0.1, 0.2], [0.3, 0.4], [0.5, 0.6]], np.float32)  # three steps
    front = np.arange(3 * 4 * 5 * 3, dtype=np.uint8).reshape(3, 4, 5, 3)
    seen = {"observation.state": state, "observation.images.front": front, "task": "go"}
    request = Request(SPEC, None, 0, 0, None, seen)  # type: ignore[arg-type]
    with serve(steps=[-2, 0], cameras=["front"]) as server, policy(server) as groot:
        actions = groot.infer([request, request])
    np.testing.assert_allclose(actions[1], expected((0.5, 0.6, "go"))[0], atol=1e-6)
    assert server.asked("get_action")[0]["pictures"] == [[[0, 120], [0, 120]]]


def test_libero_needs_no_keys_and_has_its_gripper_turned(serve: Serve) -> None:
    parts = ["x", "y", "z", "roll", "pitch", "yaw", "gripper"]
    with (
        serve(cameras=["image", "wrist_image"], state=parts) as server,
        policy(server, "libero:spatial", keys={}) as groot,
    ):
        assert groot.spec.observation_keys == (
            "observation.images.image",
            "observation.images.image2",
            "observation.state",
        )
    with serve() as server, policy(server, gripper="libero") as groot:  # 0 closed .. 1 open -> 1 .. -1
        actions = groot.infer(ask((0.0, 0.0, "x" * 90), (0.0, 0.0, "x" * 10)))
    assert [row[0, -1] for row in actions] == [-1.0, 1.0]


def test_actions_are_joined_in_the_order_given(serve: Serve) -> None:
    with serve() as server, policy(server, actions=["right", "left"]) as groot:
        actions = groot.infer(ask(ROWS[0]))
    np.testing.assert_allclose(actions[0][0], [-0.5, 0.1, 0.25], atol=1e-6)


def test_seeds_are_sent_where_they_are_asked_for(serve: Serve) -> None:
    requests = ask(*ROWS)
    with serve() as server:
        with policy(server) as groot:
            groot.infer(requests)
        with policy(server, seeds=True) as groot:
            groot.infer(requests)
    without, given = server.asked("get_action")
    assert without["options"] is None
    assert given["options"] == {"seed": [request.noise_seed for request in requests]}


def test_a_server_that_is_slow_once_is_asked_again_over_a_new_socket(serve: Serve) -> None:
    with serve(behaviour="slow_once") as server, policy(server, timeout_s=2) as groot:
        np.testing.assert_allclose(groot.infer(ask(*ROWS)), expected(*ROWS), atol=1e-6)
        np.testing.assert_allclose(groot.infer(ask(ROWS[1])), expected(ROWS[1]), atol=1e-6)


def test_a_server_that_dies_and_comes_back_is_asked_again_without_waiting_for_the_time_out(
    serve: Serve,
) -> None:
    with serve(behaviour="dies_once") as server, policy(server, timeout_s=50) as groot:
        began = time.monotonic()
        np.testing.assert_allclose(groot.infer(ask(*ROWS)), expected(*ROWS), atol=1e-6)
        assert time.monotonic() - began < 40
    assert [each["rows"] for each in server.asked("get_action")] == [3, 3]


def test_a_server_behind_a_forwarded_port_is_waited_for_while_it_is_away(serve: Serve) -> None:
    with serve() as server, Forwarder(server) as port, policy(port.spec, timeout_s=30) as groot:
        groot.infer(ask(ROWS[0]))
        port.hang_up(times=12)
        np.testing.assert_allclose(groot.infer(ask(*ROWS)), expected(*ROWS), atol=1e-6)
    assert port.refused == 12
    assert [each["rows"] for each in server.asked("get_action")] == [1, 3]


def test_a_server_behind_a_forwarded_port_that_stays_away_is_given_up(serve: Serve) -> None:
    with serve() as server, Forwarder(server) as port, policy(port.spec, timeout_s=1) as groot:
        port.hang_up(times=10**6)
        began = time.monotonic()
        with pytest.raises(PolicyError, match=r"gave no answer to get_action: nothing came within 1 s"):
            groot.infer(ask(ROWS[0]))
        assert 2 < time.monotonic() - began < 30


class Forwarder:
    """A port whose connections go on to another one, as `ssh -L` has it: it accepts before it knows of a server."""

    def __init__(self, server: Served) -> None:
        self.refused = 0
        self._to, self._left = int(server.spec.rpartition(":")[2]), 0
        self._ends: list[socket.socket] = []
        self._threads: list[threading.Thread] = []

    def __enter__(self) -> Forwarder:
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.spec = f"gr00t:tcp://127.0.0.1:{self._listener.getsockname()[1]}"
        self._start(self._accept)
        return self

    def __exit__(self, *_: object) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._break()
        for thread in self._threads:
            thread.join(10)
        for each in (self._listener, *self._ends):
            each.close()

    def hang_up(self, times: int) -> None:
        """On those who are connected, and the next `times` who will."""
        self._left = times
        self._break()

    def _break(self) -> None:
        for end in self._ends:
            with suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            if self._left:
                self._left, self.refused = self._left - 1, self.refused + 1
                client.close()
                continue
            server = socket.create_connection(("127.0.0.1", self._to))
            self._ends += [client, server]
            self._start(self._carry, client, server)
            self._start(self._carry, server, client)

    def _start(self, what: Callable[..., None], *ends: socket.socket) -> None:
        self._threads.append(threading.Thread(target=what, args=ends))
        self._threads[-1].start()

    def _carry(self, source: socket.socket, target: socket.socket) -> None:
        with suppress(OSError):
            while data := source.recv(65536):
                target.sendall(data)
        for end in (source, target):
            with suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)


@pytest.mark.parametrize(
    ("behaviour", "says"),
    [
        ("error", "Traceback (most recent call last):\n  …\nRuntimeError: the arm is upside down"),
        ("silent", "gave no answer to get_action: nothing came within 1.5 s (3 tries)"),
        ("dies", "gave no answer to get_action: nothing came within 1.5 s (3 tries)"),
        ("huge", "it hung up: it ended, or its answer has more than max_message_mb=1 (3 tries)"),
        ("objects", "only numbers are taken"),
        ("a_row_less", "'left' of shape (2, 3, 1), float32: expected (3, T, D)"),
        ("a_key_less", "without 'right' (it has left)"),
        ("no_chunk", "'left' of shape (3, 1), float32: expected (3, T, D)"),
        ("another_chunk", "left (3, 2, 1), right (3, 3, 2)"),
        ("garbage", "not a MessagePack message"),
        ("no_pair", "expected [action, info]"),
    ],
)
def test_what_the_server_does_wrong_is_its_fault(serve: Serve, behaviour: str, says: str) -> None:
    timeout_s = 1.5 if behaviour in ("silent", "dies") else 20
    with serve(behaviour=behaviour) as server:
        with (
            policy(server, timeout_s=timeout_s, max_message_mb=1) as groot,
            pytest.raises(PolicyError) as caught,
        ):
            groot.infer(ask(*ROWS))
        assert says in str(caught.value)
        assert f"the GR00T server at {server.spec.removeprefix('gr00t:')} " in str(caught.value)


def test_pickled_objects_in_the_newer_form_are_refused_too(serve: Serve) -> None:
    with (
        serve(behaviour="objects", arrays="msgpack") as server,
        policy(server) as groot,
        pytest.raises(PolicyError, match="an array of kind b'O': only numbers are taken"),
    ):
        groot.infer(ask(*ROWS))


def test_closing_ends_a_request_that_is_under_way(serve: Serve) -> None:
    errors: list[Exception] = []

    def infer(groot: Any) -> None:
        try:
            groot.infer(ask(*ROWS))
        except PolicyError as exc:
            errors.append(exc)

    with serve(behaviour="silent") as server:
        with policy(server, timeout_s=3000) as groot:
            thread = threading.Thread(target=infer, args=(groot,))
            thread.start()
            ends = time.monotonic() + 60
            while not server.asked("get_action") and time.monotonic() < ends:
                thread.join(0.02)
        thread.join(60)
        assert not thread.is_alive()
    assert "closed meanwhile" in str(errors[0])


def test_nothing_stays_open(serve: Serve) -> None:
    def descriptors() -> int:
        gc.collect()
        return len(os.listdir("/proc/self/fd"))

    with serve() as server:
        with policy(server) as groot:
            groot.infer(ask(*ROWS))
        before = descriptors()
        for _ in range(3):
            with policy(server) as groot:
                groot.infer(ask(*ROWS))
        assert descriptors() == before


def test_the_token_comes_from_the_environment_and_is_never_told(
    serve: Serve, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    with serve(token="sesame-42") as server:
        with pytest.raises(UsageError, match=r"Unauthorized.*GR00T_API_TOKEN"), policy(server):
            pass
        monkeypatch.setenv("MY_TOKEN", "sesame-41")
        with (
            pytest.raises(UsageError, match="Unauthorized") as refused,
            policy(server, api_token_env="MY_TOKEN"),
        ):
            pass
        assert "sesame" not in str(refused.value)
        assert "\n" not in str(refused.value)
        monkeypatch.setenv("GR00T_API_TOKEN", "sesame-42")
        out = tmp_path / "run"
        rollout.run(server.spec, WIDE, episodes=1, workers=1, policy_args={"keys": KEYS}, out=out)
    assert not [path for path in out.rglob("*") if path.is_file() and b"sesame" in path.read_bytes()]


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ({"keys": {}}, "say which part of an observation the server's state.a is"),
        ({"keys": {**KEYS, "state.c": "x"}}, "the server reads no 'state.c'; did you mean 'state."),
        ({"keys": {**KEYS, "state.a": "observation.state[0,1]"}}, "is no observation key"),
        ({"timeout_s": 0}, "must be above 0"),
        ({"arrays": "pickle"}, "arrays"),
        ({"time_out": 3}, "time_out"),
    ],
)
def test_wrong_arguments_are_one_line(serve: Serve, arguments: dict[str, Any], says: str) -> None:
    with serve() as server, pytest.raises(UsageError) as caught, policy(server, **arguments):
        pass
    assert says in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "locator",
    ["127.0.0.1:5555", "tcp://127.0.0.1", "tcp://h:99999", "http://h:1", "tcp://h:1/x"],
)
def test_a_locator_of_another_form_is_one_line(locator: str) -> None:
    with pytest.raises(UsageError, match="gr00t:tcp://HOST:PORT"), policy(f"gr00t:{locator}"):
        pass


@pytest.mark.parametrize(
    "locator", ["tcp://u:secret@h:1", "u:secret@h:1", "tcp://h:1?secret", "tcp://h:1#secret"]
)
def test_a_locator_that_may_hold_a_password_is_not_shown(locator: str) -> None:
    with pytest.raises(UsageError, match="as GR00T_API_TOKEN") as caught, policy(f"gr00t:{locator}"):
        pass
    assert "secret" not in str(caught.value)


def test_a_server_that_tells_nothing_of_its_modalities_is_refused(serve: Serve) -> None:
    with (
        serve(behaviour="tells_nothing") as server,
        pytest.raises(UsageError, match="get_modality_config with no description"),
        policy(server),
    ):
        pass


def test_who_answers_no_ping_is_no_server() -> None:
    with socket.create_server(("127.0.0.1", 0)) as deaf:
        spec = f"gr00t:tcp://127.0.0.1:{deaf.getsockname()[1]}"
        with pytest.raises(UsageError, match=r"no answer to ping: nothing came"), policy(spec, timeout_s=0.2):
            pass


def test_an_observation_that_does_not_fit_is_told_before_it_is_sent(serve: Serve) -> None:
    with serve(cameras=["front"]) as server, policy(server) as groot:
        for front in (np.zeros((4, 4, 3), np.float32), np.zeros((4, 4), np.uint8)):
            with pytest.raises(PolicyError, match=r"video.front cannot be made of observation.images.front"):
                groot.infer(ask(*ROWS, **{"observation.images.front": front}))
        with pytest.raises(PolicyError, match=r"state.b cannot be made of observation.state\[1:2\]"):
            groot.infer(
                ask(
                    ROWS[0],
                    **{
                        "observation.images.front": np.zeros((4, 4, 3), np.uint8),
                        "observation.state": np.zeros(1, np.float32),
                    },
                )
            )
    assert not server.asked("get_action")


class TestContract(PolicyContract):
    """What every policy must keep."""

    policy = ""
    policy_args: ClassVar = {"keys": KEYS}
    target = WIDE

    @pytest.fixture(autouse=True)
    def served(self, serve: Serve, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
        with serve() as server:
            monkeypatch.setattr(type(self), "policy", server.spec)
            yield


def run(target: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    """`rollout run` in a process of its own."""
    command = [sys.executable, "-c", "from rollout.cli import main; main()", "run", target, *arguments]
    return subprocess.run(
        command,
        env=os.environ | {"PYTHONPATH": f"{HERE}:{HERE.parent}"},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
        stdin=subprocess.DEVNULL,
    )


def test_no_server_is_one_line_and_exit_code_2(tmp_path: Path) -> None:
    done = run(COUNT, "--policy", "gr00t:tcp://127.0.0.1:1", "--out", str(tmp_path / "run"))
    assert (done.returncode, done.stdout) == (2, "")
    assert len(done.stderr.splitlines()) == 1, done.stderr
    assert "no server at tcp://127.0.0.1:1: Connection refused" in done.stderr


@pytest.mark.parametrize("arrays", ["npy", "msgpack"])
def test_every_episode_of_a_run_gets_its_own_actions(serve: Serve, arrays: str) -> None:
    """State is (step, seed), so the reward of a step says whose chunk it was, and which step of it."""
    runs = []
    with serve(arrays=arrays, chunk=4) as server:
        for workers in (1, 4):
            arguments: Any = {"policy_args": {"keys": KEYS}, "n_action_steps": 3, "workers": workers}
            # It waits, so that requests surely share a batch; never for one that cannot come.
            report = rollout.run(server.spec, WIDE, episodes=6, max_wait_ms=500, **arguments)
            for episode in report.episodes:
                parts = [step // 3 * 3 + step % 3 / 1000 for step in range(episode.steps)]
                assert episode.sum_reward == pytest.approx(
                    sum(parts) + episode.seed * episode.steps, abs=1e-2
                )
            runs.append([episode.digest for episode in report.episodes])
    assert runs[0] == runs[1]
    rows = [each["rows"] for each in server.asked("get_action")]
    assert max(rows) > 1
    assert sum(rows) == 2 * sum(-(-episode.steps // 3) for episode in report.episodes)


def test_an_error_of_the_server_ends_a_run_with_its_own_words_and_exit_code_1(
    serve: Serve, tmp_path: Path
) -> None:
    with serve(behaviour="error") as server:
        keys = f"keys={json.dumps(KEYS)}"
        out = str(tmp_path / "run")
        done = run(WIDE, "--policy", server.spec, "--policy-arg", keys, "--episodes", "2", "--out", out)
    assert done.returncode == 1
    assert "RuntimeError: the arm is upside down" in done.stderr
