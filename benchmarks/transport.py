"""What the engine costs beside the simulators: env-steps per second of CartPole-v1, 16 workers, one step a decision.

    python benchmarks/transport.py [--seconds 5] [--rounds 5] [--json FILE]

Contenders, each in a fresh process, alternating, so that a noisy machine is noisy to all of them:

* `rollout`: a whole evaluation (plan, batcher, records, digests) with a policy that returns at once and says so
  (`PolicySpec(inline=True)`, as the built-in `random` does).
* `rollout, thread`: the same policy in the policy's own thread, as any other policy runs.
* `AsyncVectorEnv`: Gymnasium's own, with shared memory, in a bare loop over `step`. Steps that its autoreset spends on
  a reset are no environment steps, and are not counted.

Prints medians and the ratio, and JSON.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

ENV_ID = "CartPole-v1"
N_ENVS = 16


def measure_async_vector_env(seconds: float) -> float:
    """Env-steps per second of a bare loop."""
    import gymnasium
    import numpy as np

    def make() -> Any:
        return gymnasium.make(ENV_ID, disable_env_checker=True)

    envs = gymnasium.vector.AsyncVectorEnv([make] * N_ENVS, shared_memory=True)
    envs.reset(seed=list(range(N_ENVS)))
    actions = [np.full(N_ENVS, action) for action in (0, 1)]
    for step in range(200):  # warm-up
        envs.step(actions[step % 2])
    began, calls, resets = time.perf_counter(), 0, 0
    while time.perf_counter() - began < seconds:
        _, _, terminated, truncated, _ = envs.step(actions[calls % 2])
        calls += 1
        resets += int((terminated | truncated).sum())
    rate = (calls * N_ENVS - resets) / (time.perf_counter() - began)
    envs.close()
    return rate


class Alternating:
    """Returns at once: left, right, left, …"""

    def __init__(self, inline: bool) -> None:
        import numpy as np

        from rollout import PolicySpec

        self.spec = PolicySpec(inline=inline)
        self.actions = (np.array([0]), np.array([1]))  # chunks of one action

    def infer(self, requests: Sequence[Any]) -> Sequence[Any]:
        """One action a request."""
        return [self.actions[request.step % 2] for request in requests]


def measure_rollout(seconds: float, inline: bool = True) -> float:
    """Env-steps per second of an evaluation that takes about `seconds`; `inline`: without the policy's thread."""
    import anyio

    import rollout
    from rollout.api import loop_options

    async def steps_per_s(engine: rollout.Engine, episodes: int) -> tuple[float, float]:
        report = await engine.evaluate(Alternating(inline), episodes=episodes)
        assert report.summary.overall.n_error == 0
        timing, mean_steps = report.summary.timing, report.summary.overall.mean_steps
        assert timing is not None
        assert timing.steps_per_s is not None
        assert mean_steps is not None
        return timing.steps_per_s, mean_steps

    async def main() -> float:
        async with rollout.Engine(f"gym:{ENV_ID}", workers=N_ENVS) as engine:
            rate, mean_steps = await steps_per_s(engine, 10 * N_ENVS)  # warm-up: starts and builds
            rate, mean_steps = await steps_per_s(engine, 10 * N_ENVS)
            return (await steps_per_s(engine, max(N_ENVS, int(rate * seconds / mean_steps))))[0]

    return anyio.run(main, backend_options=loop_options())


CONTENDERS: dict[str, Callable[[float], float]] = {
    "AsyncVectorEnv": measure_async_vector_env,
    "rollout": measure_rollout,
    "rollout, thread": partial(measure_rollout, inline=False),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--seconds", type=float, default=5.0, help="how long each measurement lasts")
    parser.add_argument("--rounds", type=int, default=5, help="measurements of each contender")
    parser.add_argument("--json", help="also write the result to this file")
    parser.add_argument("--contender", choices=CONTENDERS, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.contender:
        print(CONTENDERS[options.contender](options.seconds))
        return
    rates: dict[str, list[float]] = {name: [] for name in CONTENDERS}
    for round_number in range(options.rounds):
        for name, values in rates.items():
            command = [sys.executable, __file__, "--contender", name, "--seconds", str(options.seconds)]
            values.append(float(subprocess.run(command, check=True, capture_output=True, text=True).stdout))
        print(
            f"round {round_number + 1}: " + "  ".join(f"{n} {v[-1]:,.0f}/s" for n, v in rates.items()),
            flush=True,
        )
    report(rates, options.json)


def report(rates: dict[str, list[float]], path: str | None) -> None:
    """Print the table, and the same as JSON."""
    medians = {name: statistics.median(values) for name, values in rates.items()}
    # Of each round's pair, which ran one after the other: a noisy minute then weighs on both sides of a ratio.
    pairs = zip(rates["rollout"], rates["AsyncVectorEnv"], strict=True)
    ratio = statistics.median(ours / theirs for ours, theirs in pairs)
    print(f"\n{ENV_ID}, {N_ENVS} environments, one step a decision, median of {len(rates['rollout'])}")
    for name, median in medians.items():
        print(f"  {name:16} {median:10,.0f} env-steps/s   {min(rates[name]):,.0f} to {max(rates[name]):,.0f}")
    print(f"  rollout / AsyncVectorEnv = {ratio:.2f} (median of the rounds' ratios)")
    result = json.dumps({"env": ENV_ID, "n_envs": N_ENVS, "median": medians, "rates": rates, "ratio": ratio})
    print(result)
    if path is not None:
        with open(path, "w") as file:
            file.write(result + "\n")


if __name__ == "__main__":
    main()
