"""A small GR00T policy server, as NVIDIA/Isaac-GR00T's speaks, with a table of ways to misbehave.

`python groot_server.py '{"behaviour": "slow_once", …}'` (the fields of `Settings`) prints its port and answers until it
is killed. It shares no code with `rollout`. Each request adds a line to the log: endpoint, and for `get_action` the
number of rows, the form of the arrays, and the options.

An action says whose it is. In step j of a row's chunk, `left` is state `a` + j / 1000, and `right` is
[state `b`, length of the text / 100].
"""

from __future__ import annotations

import io
import json
import os
import pickle
import sys
import time
from dataclasses import asdict, dataclass, field
from typing import Any

import msgpack
import numpy as np
import zmq


@dataclass
class Settings:
    log: str
    behaviour: str = "well"
    port: int = 0
    arrays: str = "npy"
    layout: str = "nested"
    token: str | None = None
    cameras: list[str] = field(default_factory=list)
    state: list[str] = field(default_factory=lambda: ["a", "b"])
    action: list[str] = field(default_factory=lambda: ["left", "right"])
    steps: list[int] = field(default_factory=lambda: [0])  # delta indices of observations
    chunk: int = 3


TEXT = "annotation.human.action.task_description"


class Server:
    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.asked = 0

    def run(self) -> None:
        socket = zmq.Context().socket(zmq.REP)
        port = self.settings.port or "*"
        socket.bind(f"tcp://127.0.0.1:{port}")
        self.settings.port = int(socket.getsockopt_string(zmq.LAST_ENDPOINT).rpartition(":")[2])
        print(self.settings.port, flush=True)
        while True:
            socket.send(self.reply(socket.recv()))

    def reply(self, message: bytes) -> bytes:
        try:
            request = msgpack.unpackb(message, object_hook=self.decoded)
            if self.settings.token is not None and request.get("api_token") != self.settings.token:
                told: Any = {"error": f"Unauthorized: Invalid API token (in {request!r})"}
            else:
                told = getattr(self, request["endpoint"])(**request.get("data", {}))
        except Exception as exc:
            told = {"error": str(exc)}
        return told if isinstance(told, bytes) else msgpack.packb(told, default=self.encoded)

    # The endpoints.

    def ping(self) -> Any:
        self.log("ping")
        return {"status": "ok", "message": "Server is running"}

    def reset(self, options: Any) -> Any:
        self.log("reset")
        return {}

    def get_modality_config(self) -> Any:
        self.log("get_modality_config")
        if self.settings.behaviour == "tells_nothing":
            return {}
        mine = self.settings
        chunk = list(range(mine.chunk))
        return {
            "video": self.modality(mine.cameras, mine.steps),
            "state": self.modality(mine.state, mine.steps),
            "language": self.modality([TEXT], [0]),
            "action": self.modality(mine.action, chunk),
        }

    def get_action(self, observation: Any, options: Any) -> Any:
        video, state, texts = self.read(observation)
        n_rows = len(texts)
        self.log("get_action", rows=n_rows, arrays=self.seen, options=options, pictures=video.tolist())
        self.asked += 1
        self.misbehave()
        left = np.repeat(state["a"][:, -1:], self.settings.chunk, axis=1)
        left = left + np.arange(self.settings.chunk, dtype=np.float32)[None, :, None] / 1000
        lengths = np.array([len(text) for text in texts], np.float32)[:, None, None] / 100
        right = np.concatenate([state["b"][:, -1:, :1], lengths], axis=-1)
        right = np.repeat(right, self.settings.chunk, axis=1).astype(np.float32)
        return self.spoilt({"left": left.astype(np.float32), "right": right})

    # How it reads and answers.

    def read(self, observation: Any) -> tuple[Any, Any, list[str]]:
        """Checked as strictly as `Gr00tPolicy.check_observation` and the simulation wrapper's."""
        mine = self.settings
        if mine.layout == "flat":
            names = [f"video.{camera}" for camera in mine.cameras] + [f"state.{name}" for name in mine.state]
            for name in [*names, TEXT]:
                assert name in observation, f"key '{name}' must be in observation"
            video = {camera: observation[f"video.{camera}"] for camera in mine.cameras}
            state = {name: observation[f"state.{name}"] for name in mine.state}
            texts = observation[TEXT]
        else:
            for name in ("video", "state", "language"):
                assert name in observation, f"Observation must contain a '{name}' key"
            video, state = observation["video"], observation["state"]
            rows = observation["language"][TEXT]
            assert all(isinstance(row, list) and len(row) == 1 for row in rows), rows
            texts = [row[0] for row in rows]
        assert all(isinstance(text, str) for text in texts), texts
        for value in video.values():
            assert value.dtype == np.uint8, value.dtype
            assert value.ndim == 5, value.shape
            assert value.shape[:2] == (len(texts), len(mine.steps)), value.shape
        for value in state.values():
            assert value.dtype == np.float32, value.dtype
            assert value.ndim == 3, value.shape
            assert value.shape[:2] == (len(texts), len(mine.steps)), value.shape
        first = np.array([value[:, :, 0, 0, 0] for value in video.values()])  # (camera, row, step)
        return first, state, texts

    def misbehave(self) -> None:
        match self.settings.behaviour:
            case "slow_once" if self.asked == 1:
                time.sleep(3)
            case "silent":
                time.sleep(3600)
            case "dies":
                os._exit(3)
            case "dies_once":  # and comes back
                again = asdict(self.settings) | {"behaviour": "well"}
                os.execv(sys.executable, [sys.executable, __file__, json.dumps(again)])
            case "error":
                raise RuntimeError(
                    "Traceback (most recent call last):\n  …\nRuntimeError: the arm is upside down"
                )

    def spoilt(self, action: dict[str, Any]) -> Any:
        match self.settings.behaviour:
            case "objects":
                action["left"] = np.array([{"a": 1}], object)
            case "huge":
                action["left"] = np.zeros((len(action["left"]), 500_000, 1), np.float32)
            case "a_row_less":
                action = {key: value[1:] for key, value in action.items()}
            case "a_key_less":
                del action["right"]
            case "no_chunk":
                action["left"] = action["left"][:, 0]
            case "another_chunk":
                action["left"] = action["left"][:, :-1]
            case "garbage":
                return b"ERROR"
            case "no_pair":
                return action
        flat = self.settings.layout == "flat"
        return [{f"action.{key}" if flat else key: value for key, value in action.items()}, {}]

    def modality(self, keys: list[str], steps: list[int]) -> Any:
        told = {"delta_indices": steps, "modality_keys": keys, "sin_cos_embedding_keys": None}
        if self.settings.arrays == "npy":
            return {"__ModalityConfig_class__": True, "as_json": told}
        return {"__ModalityConfig__": True, "as_json": json.dumps(told)}

    def encoded(self, value: Any) -> Any:
        if not isinstance(value, np.ndarray):
            raise TypeError(type(value))
        if self.settings.arrays == "npy":
            file = io.BytesIO()
            np.save(file, value, allow_pickle=True)
            return {"__ndarray_class__": True, "as_npy": file.getvalue()}
        shared = {b"nd": True, b"shape": value.shape}
        if value.dtype == object:
            return shared | {b"type": [("", "|O")], b"kind": b"O", b"data": pickle.dumps(value)}
        return shared | {b"type": value.dtype.str, b"kind": b"", b"data": value.tobytes()}

    def decoded(self, value: Any) -> Any:
        if "__ndarray_class__" in value:
            assert self.settings.arrays == "npy", "the older form"
            self.seen = "npy"
            return np.load(io.BytesIO(value["as_npy"]), allow_pickle=False)
        if b"nd" in value:
            assert self.settings.arrays == "msgpack", "the newer form"
            self.seen = "msgpack"
            return np.frombuffer(value[b"data"], value[b"type"]).reshape(value[b"shape"])
        return value

    def log(self, endpoint: str, **what: Any) -> None:
        with open(self.settings.log, "a") as file:
            file.write(json.dumps({"endpoint": endpoint, **what}) + "\n")


if __name__ == "__main__":
    Server(Settings(**json.loads(sys.argv[1]))).run()
