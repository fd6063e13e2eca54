"""`just parity`: every LIBERO task and every Meta-World task against a plain loop; the table of `docs/parity.md`.

For each task 30 steps of reaching and pushing, 1000 as the seed: the physics' state and a frame at each decision, and
the digest of actions, rewards and ending. The engine's simulator has had another episode before. Half an hour.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any

import msgspec
from msgspec import Struct

from both import differences, engine, reference
from libero_loop import Case
from rollout.envs.metaworld_tasks import INSTRUCTIONS

PAGE = Path(__file__).parents[2] / "docs" / "parity.md"
BEGIN, END = "<!-- the table begins -->", "<!-- the table ends -->"
LIBERO = {"spatial": 10, "object": 10, "goal": 10, "10": 10, "90": 90}  # tasks


class Compared(Struct, frozen=True, kw_only=True):
    """What came of one task."""

    suite: str
    name: str
    differences: tuple[str, ...]
    frames: int  # compared
    moved: bool  # an object, by more than half a centimetre


def cases(only: Sequence[str]) -> list[tuple[str, str, Case]]:
    """(suite, family, case) of everything, or of the suites named."""
    common: dict[str, Any] = {"n_steps": 30, "seeds": (1000,), "cameras": ("image",), "after_another": True}
    found = [
        (f"libero:{suite}", "libero", Case(suite=suite, task_id=task_id, **common))
        for suite, n_tasks in LIBERO.items()
        for task_id in range(n_tasks)
    ]
    found += [("metaworld:mt50", "metaworld", Case(suite=task, task_id=0, **common)) for task in INSTRUCTIONS]
    return [case for case in found if not only or case[0] in only]


def compare(suite: str, family: str, case: Case) -> Compared:
    """Both sides of one task, each in a process of its own."""
    theirs = reference(family, case)
    ours = engine(family, case, theirs)
    return Compared(
        suite=suite,
        name=name(family, case),
        differences=tuple(differences(family, case, theirs, ours)),
        frames=sum(len(frames) for episode in ours for frames in episode["frames"].values()),
        moved=theirs[0].get("moved", 0) > 0.005,
    )


def name(family: str, case: Case) -> str:
    """What a task is called in the output."""
    return f"{case.suite} {case.task_id}" if family == "libero" else case.suite


def _lines(path: Path | None) -> list[bytes]:
    return path.read_bytes().splitlines() if path is not None and path.exists() else []


def table(results: Sequence[Compared]) -> str:
    """One row a suite, and below it a line for each difference."""
    rows = [
        "| suite | tasks | equal | frames compared | objects pushed |",
        "|---|---|---|---|---|",
    ]
    for suite in dict.fromkeys(result.suite for result in results):
        of_suite = [result for result in results if result.suite == suite]
        equal = sum(not result.differences for result in of_suite)
        pushed = (
            str(sum(result.moved for result in of_suite)) if suite.startswith("libero") else "not counted"
        )
        frames = sum(result.frames for result in of_suite)
        rows.append(f"| `{suite}` | {len(of_suite)} | {equal} | {frames} | {pushed} |")
    different = [f"- {line}" for result in results for line in result.differences]
    packages = ", ".join(
        f"{name} {version(name)}" for name in ("hf-libero", "robosuite", "metaworld", "mujoco")
    )
    when = f"{datetime.now(UTC):%Y-%m-%d}, Python {sys.version.split()[0]}, {packages}, software rendering (OSMesa)."
    return "\n".join([*rows, "", *(different or ["No difference."]), "", when])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument(
        "suites", nargs="*", help="of these alone, e.g. libero:goal; the page is left as it is"
    )
    parser.add_argument(
        "--keep", type=Path, help="a file of results, added to; what is in it is not run again"
    )
    parser.add_argument("--jobs", type=int, default=len(os.sched_getaffinity(0)))
    options = parser.parse_args()
    known = [msgspec.json.decode(line, type=Compared) for line in _lines(options.keep)]
    done = {(result.suite, result.name): result for result in known}
    todo = [case for case in cases(options.suites) if (case[0], name(*case[1:])) not in done]
    began = time.monotonic()
    with ThreadPoolExecutor(options.jobs) as pool:
        for number, result in enumerate(pool.map(lambda case: compare(*case), todo), 1):
            done[result.suite, result.name] = result
            verdict = "; ".join(result.differences) or "equal"
            print(
                f"[{time.monotonic() - began:6.0f} s] {number}/{len(todo)} {result.name}: {verdict}",
                flush=True,
            )
            if options.keep:
                with options.keep.open("ab") as file:
                    file.write(msgspec.json.encode(result) + b"\n")
    results = [done[case[0], name(*case[1:])] for case in cases(options.suites)]
    print(table(results))
    if not options.suites:
        before, _, rest = PAGE.read_text().partition(BEGIN)
        PAGE.write_text(f"{before}{BEGIN}\n{table(results)}\n{END}{rest.partition(END)[2]}")
    sys.exit(any(result.differences for result in results))


if __name__ == "__main__":
    main()
