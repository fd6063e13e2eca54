"""vla-eval 0.8's LIBERO without its containers: a model server and shards, processes as its command line starts them.

It renders both cameras at every step, resets hard, and follows its own protocol (binary gripper, its own seeds): its
episodes are as long as ours, but not the same.

Runs in an environment of its own (`benchmarks.peers`).
"""

from __future__ import annotations

import json
import socket
import subprocess
import sys
import tempfile
import time
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.contenders.lerobot_eval import configure_libero
from benchmarks.evaluations import Evaluation, clocked
from benchmarks.job import Job, Measured, Unavailable, answer

SERVER_START_S = 120.0
PICTURES = ("agentview", "wrist")


def measure(job: Job) -> Measured:
    """Seconds from starting the shards, the server being up, to the last one's end."""
    evaluation = Evaluation.of(job.case)
    if evaluation.family != "libero" or evaluation.policy != "small" or evaluation.tasks != [0, 1]:
        raise Unavailable("plays LIBERO's first tasks with the small policy alone")
    configure_libero()
    port = free_port()
    with tempfile.TemporaryDirectory() as folder:
        config = Path(folder) / "config.yaml"
        config.write_text(json.dumps(settings(evaluation, port)))  # JSON is YAML
        server = subprocess.Popen([sys.executable, "-m", __spec__.name, str(port), json.dumps(job.case)])
        try:
            wait_for(server, port)
            with clocked() as clock:
                shards = [shard(config, folder, index, evaluation.batch) for index in range(evaluation.batch)]
                codes = [each.wait() for each in shards]
        finally:
            server.terminate()
            server.wait()
        results = told(Path(folder))
    if any(codes) or len(results) != len(evaluation.tasks) * evaluation.episodes:
        raise Unavailable(f"its shards ended with {codes} and {len(results)} episodes")
    return Measured(clock.wall_s, {**clock.__dict__, "records": results})


def settings(evaluation: Evaluation, port: int) -> dict[str, Any]:
    """Its configuration: two tasks, both cameras, the state."""
    return {
        "server": {"url": f"ws://127.0.0.1:{port}"},
        "benchmarks": [
            {
                "benchmark": "vla_eval.benchmarks.libero.benchmark:LIBEROBenchmark",
                "episodes_per_task": evaluation.episodes,
                "max_tasks": len(evaluation.tasks),
                "max_steps": evaluation.horizon,
                "params": {
                    "suite": "libero_spatial",
                    "seed": 7,
                    "send_wrist_image": True,
                    "send_state": True,
                },
            }
        ],
    }


def shard(config: Path, folder: str, index: int, shards: int) -> subprocess.Popen[bytes]:
    """One of its processes; they share a queue of episodes."""
    command = "from vla_eval.cli.main import main; main()"
    options = {"--config": config, "--output-dir": folder, "--render": "cpu", "--eval-id": "bench"}
    options |= {"--shard-id": index, "--num-shards": shards}
    words = [str(word) for option in options.items() for word in option]
    return subprocess.Popen([sys.executable, "-c", command, "run", "--no-docker", *words])


def told(folder: Path) -> list[tuple[str, int, int, bool]]:
    """(task, episode, steps, success) of every episode that its store has as finished."""
    import sqlite3

    [database] = folder.glob("*.sqlite")
    query = "SELECT task_name, episode_id, steps, status FROM episode_results WHERE status <> 'error'"
    with closing(sqlite3.connect(database)) as store:
        found = store.execute(query).fetchall()
    return sorted((task, episode, steps, status == "success") for task, episode, steps, status in found)


def free_port() -> int:
    """One that nobody listens on now."""
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        port: int = listening.getsockname()[1]
        return port


def wait_for(server: subprocess.Popen[bytes], port: int) -> None:
    """Until it listens. Raises `Unavailable` where it never does."""
    deadline = time.monotonic() + SERVER_START_S
    while time.monotonic() < deadline and server.poll() is None:
        with suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=1):
            return
        time.sleep(0.1)
    raise Unavailable("vla-eval's model server did not start")


def serve(port: int, evaluation: Evaluation) -> None:
    """Its model server around the small policy, batching what waits."""
    import torch
    from vla_eval.model_servers.predict import PredictModelServer
    from vla_eval.model_servers.serve import serve as run

    from benchmarks.small_policy import SmallPolicy

    torch.set_num_threads(1)
    policy = SmallPolicy(**evaluation.policy_shape).eval()

    class Server(PredictModelServer):
        """A chunk for each observation that is asked about."""

        @torch.inference_mode()
        def predict(self, obs: Any, ctx: Any) -> Any:
            pictures = [
                torch.from_numpy(np.array(obs["images"][name])).permute(2, 0, 1)[None].float() / 255
                for name in PICTURES
            ]
            state = torch.from_numpy(np.asarray(obs["states"], np.float32))[None]
            return {"actions": policy(pictures, state)[0].numpy()}

        def get_action_spec(self) -> dict[str, Any]:
            return {}

        def get_observation_spec(self) -> dict[str, Any]:
            return {}

    run(Server(chunk_size=evaluation.chunk), host="127.0.0.1", port=port)


if __name__ == "__main__":
    if len(sys.argv) > 1:
        serve(int(sys.argv[1]), Evaluation.of(json.loads(sys.argv[2])))
    else:
        answer(measure)
