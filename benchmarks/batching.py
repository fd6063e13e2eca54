"""How near the batcher comes to the bound, with simulators and an accelerator that only sleep: the bound is exact then.

    python benchmarks/batching.py [--rounds 3] [--speed 5] [--episodes 500] [--only NAME ...] [--quick] [--json FILE]

A simulator is a coroutine that sleeps for drawn, log-normal times while it holds one of the cores; the policy is a
thread that sleeps a + b B for a batch of B. Contenders, each in a fresh process, alternating, on the same drawn times:

* greedy: the engine's `Batcher`, as it is by default.
* 10 ms wait: the same with `max_wait_s`.
* lock-step: N simulators step, all wait for the slowest, one forward of N, and so on until the longest of N episodes
  has ended; then the next N.

Everything but the fastest simulators runs `--speed` times as fast as in life, the 10 ms included, so what a batcher
costs weighs as many times more. What is printed are seconds of life. Where there is a CUDA device, a real module is
measured on it too (`batching_cuda.py`). Prints a table for each policy, and JSON.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from batching_contenders import CONTENDERS, WAIT_S, Setting, request_for, run
from batching_theory import Demand, best_rule, demand, simulated_s
from batching_work import Curve, draw

CORES = 16


@dataclass(frozen=True)
class Case:
    """A policy, how many simulators ask it, and how many times as fast as LIBERO's these are."""

    curve: Curve
    simulators: int = 2 * CORES
    pace: float = 1.0

    def speed(self, wanted: float) -> float:
        """Of the clock: simulators that take milliseconds a chunk are measured as fast as in life."""
        return max(1.0, wanted / self.pace)


# The 7B curve is fitted, within 4 %, to what vla-eval's tuning guide measured of DB-CogACT on an H100 (165 observations
# a second in batches of 1 to 485 in batches of 24, at twelve a decision). "Balanced" asks as much of the policy as of
# the cores, which leaves no slack to either. "Fast simulators" are Meta-World's without images: eight steps of 0.42 ms.
CASES = {
    "small policy": Case(Curve(0.003, 0.0001)),
    "7B VLA": Case(Curve(0.050, 0.023)),
    "launch-bound": Case(Curve(0.025, 0.0002)),
    "balanced, the hard case": Case(Curve(0.080, 0.0107)),
    "balanced, N = 3C": Case(Curve(0.080, 0.0107), 3 * CORES),
    "launch-bound, fast simulators": Case(Curve(0.025, 0.0002), pace=70.0),
}


@dataclass
class Accelerator:
    """The simulated policy; notes what it was given."""

    curve: Curve
    batches: list[int] = field(default_factory=list)
    busy_s: float = 0.0

    def infer(self, requests: Sequence[Any]) -> Sequence[None]:
        """Sleep for as long as the forward takes."""
        began = time.monotonic()
        self.batches.append(len(requests))
        time.sleep(self.curve(len(requests)))
        self.busy_s += time.monotonic() - began
        return [None] * len(requests)


def measure(name: str, contender: str, episodes: int, speed: float) -> dict[str, Any]:
    """One contender's run, in seconds of life."""
    case = CASES[name]
    speed = case.speed(speed)
    drawn = draw(episodes, speed * case.pace)
    accelerator = Accelerator(case.curve.faster(speed))
    setting = Setting(
        drawn, cores=CORES, simulators=case.simulators, infer=accelerator.infer, request=request_for({})
    )
    wall_s = run(contender, setting, WAIT_S / speed)
    return {
        "wall_s": wall_s * speed,
        "policy_busy": accelerator.busy_s / wall_s,
        "cores_busy": sum(each.total_s for each in drawn) / CORES / wall_s,
        "batches": dict(sorted(Counter(accelerator.batches).items())),
    }


def measured_apart(name: str, contender: str, episodes: int, speed: float) -> dict[str, Any]:
    """`measure` in a process of its own."""
    options = ["--episodes", str(episodes), "--speed", str(speed)]
    command = [sys.executable, __file__, "--measure", name, contender, *options]
    done = subprocess.run(command, check=False, capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(f"{name}, {contender}: {done.stderr}")
    result: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return result


def row(name: str, rounds: int, episodes: int, speed: float) -> dict[str, Any]:
    """All contenders on one policy, beside the bound and what rules reach in theory."""
    case = CASES[name]
    drawn = draw(episodes, case.pace)
    work = (drawn, case.curve, CORES, case.simulators)
    runs: dict[str, list[dict[str, Any]]] = {contender: [] for contender in CONTENDERS}
    for _ in range(rounds):
        for contender, measured in runs.items():
            measured.append(measured_apart(name, contender, episodes, speed))
    best_s, fewest = best_rule(*work)
    theory = {"greedy_s": simulated_s(*work), "best_s": best_s, "fewest": fewest}
    return as_row(name, case.curve, case.simulators, demand(*work), runs) | {"simulated": theory}


def as_row(
    name: str, curve: Curve, simulators: int, asked: Demand, runs: dict[str, list[dict[str, Any]]]
) -> dict[str, Any]:
    """What is printed of one policy, as a table and as JSON."""
    walls: dict[str, list[float]] = {
        contender: [each["wall_s"] for each in measured] for contender, measured in runs.items()
    }

    def share(bound_s: float) -> dict[str, float]:
        return {key: statistics.median(bound_s / wall_s for wall_s in each) for key, each in walls.items()}

    def slower(theirs: list[float]) -> float:  # of the rounds' neighbours: a noisy minute weighs on both
        return statistics.median(their / our for their, our in zip(theirs, walls["greedy"], strict=True))

    return {
        "name": name,
        "curve": asdict(curve),
        "simulators": simulators,
        "cores": CORES,
        "demand": asdict(asked),
        "bound_s": asked.bound_s,
        "share_of_bound": share(asked.bound_s),
        "share_of_full_bound": share(asked.full_bound_s),
        "times_greedy": {contender: slower(each) for contender, each in walls.items()},
        "runs": runs,
    }


def show(row: dict[str, Any]) -> None:
    """Print one policy's table."""
    curve, asked, bound_s = Curve(**row["curve"]), Demand(**row["demand"]), row["bound_s"]
    print(f"\n{row['name']}: t(B) = {curve} ms, N = {row['simulators']}, C = {row['cores']}")
    print(
        f"bound {bound_s:.1f} s: cores {asked.cores_s:.1f}, policy {asked.policy_s:.1f} "
        f"({asked.policy_full_s:.1f} if B* = N), longest episode {asked.longest_s:.1f}"
    )
    if "simulated" in row:
        theory = row["simulated"]
        ours, best = (f"{bound_s / theory[key]:.1%}" for key in ("greedy_s", "best_s"))
        rule = f"wait for {theory['fewest']}" if theory["fewest"] > 1 else "greedy"
        print(f"if only the work took time: greedy {ours} of the bound, the best rule {best} ({rule})")
    print("| contender | s | lowest to highest | × greedy | of the bound | B* = N | batch | policy | cores |")
    print("|---|---|---|---|---|---|---|---|---|")
    for contender, runs in row["runs"].items():
        print(as_markdown(row, contender, runs), flush=True)


def as_markdown(row: dict[str, Any], contender: str, runs: list[dict[str, Any]]) -> str:
    """One contender's line."""
    walls = [run["wall_s"] for run in runs]
    sizes = [statistics.fmean(int(size) for size in Counter(run["batches"]).elements()) for run in runs]
    busy = [statistics.median(run[key] for run in runs) for key in ("policy_busy", "cores_busy")]
    cells = [
        contender,
        f"{statistics.median(walls):.1f}",
        f"{min(walls):.1f} to {max(walls):.1f}",
        f"{row['times_greedy'][contender]:.2f}",
        *(f"{row[key][contender]:.1%}" for key in ("share_of_bound", "share_of_full_bound")),
        f"{statistics.median(sizes):.1f}",
        *(f"{share:.0%}" for share in busy),
    ]
    return "| " + " | ".join(cells) + " |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--rounds", type=int, default=3, help="measurements of each contender")
    parser.add_argument("--episodes", type=int, default=500, help="500: LIBERO-Spatial, ten tasks × 50")
    parser.add_argument("--speed", type=float, default=5.0, help="how many times as fast as in life")
    parser.add_argument("--only", nargs="+", choices=CASES, metavar="NAME", help=", ".join(CASES))
    parser.add_argument(
        "--quick", action="store_true", help="one round of 128 episodes: the tail weighs more"
    )
    parser.add_argument("--json", help="also write the result to this file")
    parser.add_argument("--measure", nargs=2, help=argparse.SUPPRESS)
    options = parser.parse_args()
    rounds, episodes = (1, 128) if options.quick else (options.rounds, options.episodes)
    if options.measure:
        name, contender = options.measure
        print(json.dumps(measure(name, contender, options.episodes, options.speed)))
        return
    print(f"{episodes} episodes, {options.speed:g} times as fast as in life, median of {rounds}")
    rows = []
    for name in options.only or CASES:
        rows.append(row(name, rounds, episodes, options.speed))
        show(rows[-1])
    rows += on_device(rounds, episodes)
    result = json.dumps(rows)
    print(result)
    if options.json is not None:
        with open(options.json, "w") as file:
            file.write(result + "\n")


def on_device(rounds: int, episodes: int) -> list[dict[str, Any]]:
    """The same of a real module, where there is a CUDA device."""
    import torch

    if not torch.cuda.is_available():
        print("\nno CUDA device: the simulated accelerator alone")
        return []
    from batching_cuda import measure as measure_module

    device = torch.device("cuda")
    measured = measure_module(device, rounds, episodes, cores=CORES, simulators=2 * CORES)
    name = f"ViT-L on {torch.cuda.get_device_name(device)}; policy: the device busy, by its own events"
    rows = [as_row(name, measured.curve, 2 * CORES, measured.demand, measured.runs)]
    show(rows[0])
    return rows


if __name__ == "__main__":
    main()
