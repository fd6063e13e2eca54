"""`rollout bench` on the command line, from a checkout and from a wheel."""

from __future__ import annotations

import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from benchmarks.workloads import NAMES
from rollout.bench import harness_folder

ROOT = Path(__file__).parents[2]
DEADLINE_S = 60.0


def bench(*arguments: str, **environ: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "rollout", "bench", *arguments],
        capture_output=True,
        text=True,
        timeout=DEADLINE_S,
        check=False,
        env={**os.environ, **environ},
    )


def test_a_checkout_runs_its_own_harness() -> None:
    assert harness_folder() == ROOT


def test_the_workloads_are_listed() -> None:
    done = bench("--list")
    assert done.returncode == 0, done.stderr
    assert [line.split()[0] for line in done.stdout.splitlines()] == list(NAMES)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("transprot",), "no workload 'transprot'; did you mean 'transport'? (see `rollout bench --list`)"),
        (("transport", "--case", "nosuch"), "no case has 'nosuch' in its name: there are n = "),
        (("--plots", "/proc/nowhere"), "cannot write into /proc/nowhere"),
        (("--compare", "no/such.json"), "cannot read no/such.json: No such file or directory"),
        (("--json", "no/such/file.json"), "cannot write no/such/file.json: give a file in a directory"),
    ],
)
def test_bad_usage_is_one_line_and_exit_code_2(arguments: tuple[str, ...], said: str) -> None:
    done = bench(*arguments)
    assert done.returncode == 2
    assert done.stdout == ""
    assert len(done.stderr.splitlines()) == 1
    assert said in done.stderr


def test_a_wheel_brings_the_harness_along(tmp_path: Path) -> None:
    pytest.importorskip("hatchling")
    command = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(tmp_path)]
    subprocess.run(command, cwd=ROOT, check=True, capture_output=True, timeout=DEADLINE_S)
    [wheel] = tmp_path.glob("*.whl")
    installed = tmp_path / "installed"
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(installed)
    names = {path.relative_to(ROOT / "benchmarks") for path in (ROOT / "benchmarks").rglob("*.py")}
    there = installed / "rollout" / "_harness" / "benchmarks"
    assert {path.relative_to(there) for path in there.rglob("*.py")} == names
    assert not list(there.rglob("*.pyc"))
    done = bench("--list", PYTHONPATH=str(installed))
    assert done.returncode == 0, done.stderr
    script = "import rollout.bench; print(rollout.bench.harness_folder())"
    folder = subprocess.run(
        [sys.executable, "-c", script],
        env={**os.environ, "PYTHONPATH": str(installed)},
        check=True,
        capture_output=True,
        text=True,
        timeout=DEADLINE_S,
    )
    assert folder.stdout.strip() == str(installed / "rollout" / "_harness")
