"""From nothing to something: a fresh interpreter, until it has imported, stepped or ended."""

from __future__ import annotations

import subprocess
import sys
import time

from benchmarks.environments import NO_OP
from benchmarks.job import Job, Measured, Unavailable, answer

IMPORTS = {
    "rollout": "import rollout; rollout.Engine",
    "AsyncVectorEnv": "import gymnasium; gymnasium.vector.AsyncVectorEnv",
    "SubprocVecEnv": "from stable_baselines3.common.vec_env import SubprocVecEnv",
}
# Each says "stepped" once all n environments have made their first step.
FIRST_STEPS = {
    "rollout": f"""
import rollout, numpy
class Policy:
    spec, stepped = rollout.PolicySpec(inline=True), set()
    def infer(self, requests):
        self.stepped.update(request.episode.episode for request in requests if request.step)
        if len(self.stepped) == {{n}}:
            print("stepped", flush=True)
        return [numpy.zeros((1, 4), numpy.float32)] * len(requests)
rollout.run(Policy(), "gym:benchmarks.environments:{NO_OP}", workers={{n}}, episodes={{n}}, horizon=1000000)
""",
    "AsyncVectorEnv": f"""
import gymnasium, numpy, benchmarks.environments
make = lambda: gymnasium.make("benchmarks.environments:{NO_OP}", disable_env_checker=True)
envs = gymnasium.vector.AsyncVectorEnv([make] * {{n}})
envs.reset(seed=0)
envs.step(numpy.zeros(({{n}}, 4), numpy.float32))
print("stepped", flush=True)
""",
    "SubprocVecEnv": f"""
import gymnasium, numpy, benchmarks.environments
from stable_baselines3.common.vec_env import SubprocVecEnv
make = lambda: gymnasium.make("benchmarks.environments:{NO_OP}", disable_env_checker=True)
envs = SubprocVecEnv([make] * {{n}}, start_method="forkserver")
envs.reset()
envs.step(numpy.zeros(({{n}}, 4), numpy.float32))
print("stepped", flush=True)
""",
}


def measure(job: Job) -> Measured:
    """Seconds."""
    case = job.case
    if case["what"] == "command":
        return Measured(_seconds(["-m", "rollout", *case["arguments"]], None))
    if case["what"] == "import":
        return Measured(_seconds(["-c", IMPORTS[case["who"]]], None))
    return Measured(_seconds(["-c", FIRST_STEPS[case["who"]].format(n=case["n"])], "stepped"))


def _seconds(arguments: list[str], until: str | None) -> float:
    """Until a line of the interpreter's is `until`; None: until it has ended well."""
    began = time.perf_counter()
    with subprocess.Popen(
        [sys.executable, *arguments], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        for line in process.stdout:
            if line.strip() == until:
                taken_s = time.perf_counter() - began
                process.kill()
                return taken_s
        stderr = process.stderr.read().strip()
    if process.returncode or until is not None:
        raise Unavailable(stderr.splitlines()[-1] if stderr else f"exit code {process.returncode}")
    return time.perf_counter() - began


if __name__ == "__main__":
    answer(measure)
