"""A checkpoint behind `rollout serve`, in a process of its own, does what it does in this one."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from cameras_env import Cameras
from checkpoints import FRONT, WRIST
from lerobot_loop import TARGET, opened

import rollout
from rollout.policies.openpi_wire import packed, unpacked

DEADLINE_S = 60.0
REMOTE = Path(__file__).parent.parent / "remote"


@pytest.fixture(scope="module")
def url(checkpoint: Callable[[str], Path]) -> Iterator[str]:
    """A server of a small ACT."""
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(REMOTE))
        from openpi_peers import serving

        policy = f"lerobot:{checkpoint('act, a part of the chunk')}"
        environ = {
            "HF_HUB_OFFLINE": "1",
            "OMP_NUM_THREADS": "1",
        }  # as the tests of this folder in this process
        with serving(policy, "--device", "cpu", **environ) as server:
            yield server.url


def digests(policy: str, **settings: Any) -> list[str | None]:
    report = rollout.run(policy, TARGET, episodes=3, workers=2, **settings)
    assert report.summary.overall.n_error == 0
    return [episode.digest for episode in report.episodes]


def test_episodes_are_the_same_as_without_a_server(url: str, checkpoint: Callable[[str], Path]) -> None:
    folder = checkpoint("act, a part of the chunk")
    assert digests(f"openpi:{url}") == digests(f"lerobot:{folder}", device="cpu")


def test_a_request_of_openpis_clients_is_answered(url: str, checkpoint: Callable[[str], Path]) -> None:
    """They tell neither a task nor what it takes."""
    from openpi_peers import request
    from websockets.sync.client import connect

    seen = Cameras().reset(seed=0)[0]
    pictures = {FRONT: seen["pixels"]["front"], WRIST: seen["pixels"]["wrist"]}
    message = {**pictures, "observation/state": seen["agent_pos"], "prompt": "push the point about"}
    with connect(url, compression=None, proxy=None, max_size=None) as connection:
        connection.recv(timeout=DEADLINE_S)  # the metadata
        connection.send(packed(message))
        reply = connection.recv(timeout=DEADLINE_S)
    assert isinstance(reply, bytes), reply
    with opened(checkpoint("act, a part of the chunk")) as policy:
        state = seen["agent_pos"].astype(np.float32)
        [chunk] = policy.infer([request({**pictures, "observation.state": state})])
    np.testing.assert_array_equal(unpacked(reply)["actions"], chunk)
