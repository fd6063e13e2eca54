"""Nothing that a child, a server or a results directory says is run: docs/security.md, held."""

from __future__ import annotations

import ast
import os
import pickle
import struct
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

import rollout
from rollout import EvalConfig
from rollout.arguments import settings
from rollout.errors import PolicyError, ProtocolError, ResultsError, RolloutError, UsageError
from rollout.policies import groot_wire, openpi_wire
from rollout.policies.offer import asked, opening
from rollout.results.journal import ACTIONS, EPISODES, read_actions, read_journal
from rollout.sim.protocol import Reply, RunDone, reply_decoder
from rollout.sim.transport import LoopConnection, open_pipes
from rollout.values import Array, Items, Scalar, unpack

SOURCE = Path(rollout.__file__).parent

# --- the source

RUNNING_DATA = {
    "pickle", "_pickle", "cloudpickle", "dill", "joblib", "marshal", "shelve", "multiprocessing", "code", "runpy",
    "eval", "exec", "compile", "__import__", "torch.load", "np.load", "numpy.load", "np.fromfile", "yaml.load",
    "yaml.full_load", "yaml.unsafe_load", "os.system", "os.popen", "shell=True", "allow_pickle=True",
    "weights_only=False", "trust_remote_code=True",
}  # fmt: skip
"""Modules, calls and arguments that turn data into code."""

REASONS = {
    (
        "envs/metaworld.py",
        "pickle",
    ): "writes, for Meta-World in the same process: its set_task takes pickled goals",
    (
        "envs/gymnasium_handover.py",
        "pickle",
    ): "from the parent to its own workers, which run the user's code anyway",
    ("envs/gymnasium_handover.py", "cloudpickle"): "writes, for the same",
}


def found_in(file: Path) -> Iterator[str]:
    for node in ast.walk(ast.parse(file.read_text())):
        match node:
            case ast.Import(names=names):
                yield from (alias.name.partition(".")[0] for alias in names)
            case ast.ImportFrom(module=str(module), level=0):
                yield module.partition(".")[0]
            case ast.Call(func=func, keywords=keywords):
                yield ast.unparse(func)
                if isinstance(func, ast.Attribute | ast.Name) and ast.unparse(func).endswith("import_module"):
                    yield from (str(each.value) for each in node.args if isinstance(each, ast.Constant))
                yield from (f"{each.arg}={ast.unparse(each.value)}" for each in keywords if each.arg)


def test_nothing_in_the_source_turns_data_into_code_but_where_a_reason_stands() -> None:
    files = sorted(SOURCE.rglob("*.py"))
    assert len(files) > 100
    found = {
        (file.relative_to(SOURCE).as_posix(), what)
        for file in files
        for what in found_in(file)
        if what in RUNNING_DATA
    }
    assert found == REASONS.keys()


@pytest.mark.parametrize(
    "line",
    [
        "import pickle",
        "from cloudpickle import loads",
        "import importlib; importlib.import_module('dill')",
        "import numpy as np; np.load(file, mmap_mode='r')",
        "f(x, allow_pickle=True)",
        "import torch; torch.load(path)",
        "eval(text)",
    ],
)
def test_the_search_finds_what_it_is_for(line: str, tmp_path: Path) -> None:
    file = tmp_path / "module.py"
    file.write_text(line)
    assert RUNNING_DATA & set(found_in(file))


# --- bytes from elsewhere


class Trap:
    """Unpickled, it makes a file."""

    def __init__(self, mark: Path) -> None:
        self._mark = mark

    def __reduce__(self) -> tuple[Any, ...]:
        return open, (str(self._mark), "w")


@pytest.fixture
def trap(tmp_path: Path) -> Iterator[bytes]:
    """A pickle that nobody may load."""
    mark = tmp_path / "sprung"
    yield pickle.dumps(Trap(mark))
    assert not mark.exists()


@pytest.mark.filterwarnings("ignore::ResourceWarning")
def test_the_trap_works(tmp_path: Path) -> None:
    pickle.loads(pickle.dumps(Trap(tmp_path / "sprung")))
    assert (tmp_path / "sprung").exists()


def objects(trap: bytes) -> list[Array | Scalar]:
    """Arrays and scalars that claim to be of objects, with a pickle as their bytes."""
    data = trap + bytes(-len(trap) % 8)
    shape = (len(data) // 8,)
    arrays = [Array(dtype, shape, memoryview(data)) for dtype in ("|O", "|O8", "O", "object", "<O8")]
    return [*arrays, Scalar("|O", data[:8]), Scalar("O", data)]


def test_a_results_directory_is_not_unpickled(tmp_path: Path, trap: bytes) -> None:
    out = tmp_path / "out"
    out.mkdir()
    head = b'{"kind":"rollout-journal","format":1}\n'
    for lines in (trap, head + trap, trap + b"\n", head + trap + b"\n"):
        (out / EPISODES).write_bytes(lines)
        with pytest.raises(ResultsError):
            read_journal(out)
    record = msgspec.msgpack.encode(["toy:x", 0, 0, None, msgspec.msgpack.Ext(1, trap)])
    for body in (trap, record):
        (out / ACTIONS).write_bytes(struct.pack("<Q", len(body)) + body)
        with pytest.raises(ResultsError, match="the record at byte 0 is damaged"):
            read_actions(out)


def test_actions_of_objects_are_not_unpickled(tmp_path: Path, trap: bytes) -> None:
    for value in (*objects(trap), Items((objects(trap)[0],))):
        body = msgspec.msgpack.encode(["toy:x", 0, 0, None, value])
        (tmp_path / ACTIONS).write_bytes(struct.pack("<Q", len(body)) + body)
        [kept] = read_actions(tmp_path).values()
        with pytest.raises(ProtocolError):
            unpack(kept.actions)


def replied(body: bytes) -> tuple[list[Reply], list[Exception]]:
    """What the parent's end of a pipe makes of a frame."""

    async def main() -> tuple[list[Reply], list[Exception]]:
        replies: list[Reply] = []
        faults: list[Exception] = []
        ours, theirs = open_pipes()
        connection = LoopConnection(ours, replies.append, faults.append)
        os.write(theirs.write, struct.pack("<I", len(body)) + body)
        theirs.close()
        connection.drain()
        connection.close()
        return replies, faults

    import anyio

    return anyio.run(main)


def test_a_childs_frame_is_not_unpickled(trap: bytes) -> None:
    assert [len(each) for each in replied(trap)] == [0, 1]
    for value in objects(trap):
        done = RunDone(b"", True, False, None, ({"observation.state": value},), 0.0, 0.0)
        [reply], _ = replied(msgspec.msgpack.encode(done))
        assert isinstance(reply, RunDone)
        with pytest.raises(ProtocolError):
            unpack(reply.observations[0]["observation.state"])


def test_a_child_cannot_name_the_file_that_the_record_calls_its_video() -> None:
    """It says whether the one that was asked for is there; a path is no message."""
    done = RunDone(b"", True, False, None, (), 0.0, 0.0, True)
    sent = msgspec.msgpack.decode(msgspec.msgpack.encode(done))
    assert isinstance(reply_decoder().decode(msgspec.msgpack.encode(sent)), RunDone)
    sent[sent.index(True, 6)] = "/etc/passwd"
    with pytest.raises(msgspec.ValidationError):
        reply_decoder().decode(msgspec.msgpack.encode(sent))


def openpi_frames(trap: bytes) -> Iterator[bytes]:
    yield trap
    for dtype in ("|O", "O", b"|O", "object", "|V8", [("a", "|O")]):
        described = {b"__ndarray__": True, b"data": trap, b"dtype": dtype, b"shape": [len(trap) // 8]}
        yield msgspec.msgpack.encode({"actions": described})
        yield msgspec.msgpack.encode({"actions": {b"__npgeneric__": True, b"data": trap, b"dtype": dtype}})


def test_an_openpi_frame_is_not_unpickled(trap: bytes) -> None:
    for frame in openpi_frames(trap):
        with pytest.raises(ProtocolError):
            openpi_wire.unpacked(frame)
    for decode in (asked, opening):
        with pytest.raises(ProtocolError):
            decode(trap)


def test_an_openpi_server_that_answers_pickles_ends_the_run(trap: bytes) -> None:
    server = pytest.importorskip("websockets.sync.server")
    frames = list(openpi_frames(trap))
    left = iter(frames)

    def serve(connection: Any) -> None:
        connection.send(openpi_wire.packed({}))
        for _ in connection:
            connection.send(next(left))

    with server.serve(serve, "127.0.0.1", 0) as listening:
        thread = threading.Thread(target=listening.serve_forever)
        thread.start()
        try:
            spec = f"openpi:ws://127.0.0.1:{listening.socket.getsockname()[1]}"
            keys = {"keys": {"observation/state": "observation.state"}}
            for _ in frames:
                with pytest.raises(PolicyError):
                    rollout.run(spec, "gym:toys:toy/Count-v0", episodes=1, workers=0, policy_args=keys)
        finally:
            listening.shutdown()
            thread.join(10)
    assert next(left, None) is None


def groot_arrays(trap: bytes) -> Iterator[dict[str, Any]]:
    header = "{'descr': '|O', 'fortran_order': False, 'shape': (1,)}"
    text = header.encode().ljust(117) + b"\n"
    npy = b"\x93NUMPY\x01\x00" + struct.pack("<H", len(text)) + text + trap
    yield {"__ndarray_class__": True, "as_npy": npy}
    yield {"__ndarray_class__": True, "as_npy": trap}
    for kind, dtype in (
        (b"O", "|O"),
        (b"", "|O"),
        (b"", "O"),
        (b"V", "|V8"),
        (b"", "|O8,<f4"),
        (b"", "object"),
    ):
        yield {"nd": True, "type": dtype, "kind": kind, "shape": [len(trap) // 8], "data": trap}


def test_a_gr00t_servers_answer_is_not_unpickled(trap: bytes) -> None:
    with pytest.raises(ProtocolError):
        groot_wire.decode(trap)
    for described in groot_arrays(trap):
        answer = groot_wire.decode(msgspec.msgpack.encode(described))
        with pytest.raises(ProtocolError):
            groot_wire.as_array(answer)


HUGE = [
    "{'descr': '<f8', 'fortran_order': False, 'shape': (4611686018427387904,)}",
    "{'descr': '<f8', 'fortran_order': True, 'shape': (1099511627776, 1099511627776)}",
    "{'descr': '<f8', 'fortran_order': False, 'shape': (-1,)}",
    "{'descr': '<U999999999', 'fortran_order': False, 'shape': (1,)}",
    "{'descr': ('<f8', (1000000000,)), 'fortran_order': False, 'shape': (1,)}",
    "{'descr': '<f8', 'fortran_order': False, 'shape': (True,)}",
    "(" * 200 + ")" * 200,
    "[" * 9000,
]


@pytest.mark.parametrize("header", HUGE, ids=range(len(HUGE)))
def test_an_npy_header_is_not_believed(header: str) -> None:
    text = header.encode() + b"\n"
    npy = b"\x93NUMPY\x02\x00" + struct.pack("<I", len(text)) + text + bytes(8)
    with pytest.raises(ProtocolError):
        groot_wire.as_array({"__ndarray_class__": True, "as_npy": npy})


@pytest.mark.parametrize("declared", [b"\xff\xff\xff\xff", b"\x00\x00\x00\x40"])
def test_an_npy_header_longer_than_any_is_refused_before_it_is_parsed(declared: bytes) -> None:
    npy = b"\x93NUMPY\x02\x00" + declared + b"(" * 20_000
    with pytest.raises(ProtocolError):
        groot_wire.as_array({"__ndarray_class__": True, "as_npy": npy})


@pytest.mark.parametrize("shape", [[2**62], [2**40, 2**40], [-1], [0, 2**70], [True], [1.0], [[1]], [1] * 70])
@pytest.mark.parametrize(
    "described",
    [
        lambda shape: openpi_wire.unpacked(
            msgspec.msgpack.encode(
                {b"__ndarray__": True, b"data": bytes(8), b"dtype": "<f8", b"shape": shape}
            )
            if max(map(_size, shape)) < 2**64
            else b"\xc1"
        ),
        lambda shape: groot_wire.as_array(
            {"nd": True, "type": "<f8", "kind": b"", "shape": shape, "data": bytes(8)}
        ),
    ],
    ids=["openpi", "gr00t"],
)
def test_a_servers_shape_is_not_believed(
    shape: list[Any], described: Callable[[list[Any]], np.ndarray]
) -> None:
    if shape == [1] * 70:
        with pytest.raises(ProtocolError):  # more dimensions than NumPy has
            described(shape)
        return
    with pytest.raises(ProtocolError):
        described(shape)


def _size(value: Any) -> float:
    return value if isinstance(value, int | float) else 0


# --- the user's own text


def test_a_file_of_settings_that_is_nested_without_end_is_one_line(tmp_path: Path) -> None:
    file = tmp_path / "deep.toml"
    file.write_text("targets = " + "[" * 100_000)
    with pytest.raises(UsageError, match="not a TOML file"):
        settings((), {"file": str(file)})
    assert settings(("gym:x",), {"policy": "zero", "policy_arg": ("deep=" + "[" * 100_000,)})[0] == "zero"


def test_trust_is_no_part_of_what_a_run_is() -> None:
    """A run is resumed, and compared, with the flag and without."""
    configs = [EvalConfig.create(targets=("gym:x",), trust_remote_code=trusted) for trusted in (False, True)]
    assert len({config.fingerprint("zero") for config in configs}) == 1
    assert not EvalConfig.create(targets=("gym:x",)).trust_remote_code


def test_every_refusal_is_an_error_of_ours() -> None:
    assert issubclass(ProtocolError, RolloutError)
    assert issubclass(ResultsError, RolloutError)
