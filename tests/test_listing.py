"""`rollout list`: every target there is, what is not installed, and what a program reads of it."""

from __future__ import annotations

import io
import json
import os
import re
import subprocess
import sys
from collections.abc import Iterable, Mapping
from importlib.metadata import EntryPoint
from pathlib import Path
from typing import Any

import anyio
import pytest
from rich.console import Console

from rollout import Engine, listing
from rollout.envs.base import Requirement
from rollout.envs.libero import LiberoSimulator
from rollout.envs.metaworld import MetaWorldSimulator
from rollout.envs.metaworld_tasks import BENCHMARKS, DIFFICULTIES, INSTRUCTIONS
from rollout.policies.load import known_policies
from rollout.types import SuiteInfo
from test_cli import COUNT, DEADLINE_S, TESTS, rollout

LIBERO = {"spatial": 10, "object": 10, "goal": 10, "10": 10, "90": 90}
METAWORLD = {
    "mt10": 10,
    "mt25": 25,
    "mt50": 50,
    "ml10": 10,
    "ml10-test": 5,
    "ml25": 25,
    "ml25-test": 5,
    "ml45": 45,
    "ml45-test": 5,
    "easy": 28,
    "medium": 11,
    "hard": 6,
    "very_hard": 5,
}


def described(targets: Iterable[str]) -> Mapping[str, SuiteInfo]:
    """What a worker says of them."""

    async def ask() -> Mapping[str, SuiteInfo]:
        with anyio.fail_after(DEADLINE_S):
            async with Engine(tuple(targets), workers=1) as engine:
                return await engine.describe()

    return anyio.run(ask)


def unnatural(suites: Iterable[SuiteInfo]) -> list[str]:
    """The instructions that no person would give: names of tasks, or of scenes."""
    words = re.compile(r"[A-Za-z][a-z]*( [a-z0-9(),-]+)+")
    texts = [task.instruction for suite in suites for task in suite.tasks]
    return [text for text in texts if not words.fullmatch(text) or "SCENE" in text or "-v3" in text]


@pytest.mark.libero
def test_all_130_libero_tasks_are_listed_with_instructions_in_natural_language() -> None:
    suites = described(["libero:all"])
    assert {name: len(suite.tasks) for name, suite in suites.items()} == {
        f"libero:{name}": count for name, count in LIBERO.items()
    }
    assert unnatural(suites.values()) == []
    tasks = [task for suite in suites.values() for task in suite.tasks]
    assert len({task.task for task in tasks}) == 130
    assert {task.n_init_states for task in tasks} == {50}
    assert all(
        [task.task_id for task in suite.tasks] == list(range(len(suite.tasks))) for suite in suites.values()
    )


@pytest.mark.libero
def test_every_libero_suite_lists_alone_and_by_its_other_name() -> None:
    assert set(LIBERO) | {"all"} == set(LiberoSimulator.names)
    together = described(["libero:all"])
    assert described(f"libero_{name}" for name in LIBERO) == together
    assert described(["libero:goal"]) == {"libero:goal": together["libero:goal"]}


@pytest.mark.metaworld
def test_every_metaworld_group_and_every_one_of_its_50_tasks_is_listed() -> None:
    suites = described(f"metaworld:{name}" for name in MetaWorldSimulator.names)
    sizes = {name.partition(":")[2]: len(suite.tasks) for name, suite in suites.items()}
    assert set(METAWORLD) == {*BENCHMARKS, *DIFFICULTIES}
    assert len(INSTRUCTIONS) == 50
    assert sizes == METAWORLD | dict.fromkeys(INSTRUCTIONS, 1)
    assert unnatural(suites.values()) == []
    by_task = {task.task: task.instruction for suite in suites.values() for task in suite.tasks}
    assert by_task == dict(INSTRUCTIONS)


class Absent(MetaWorldSimulator):
    requires = (Requirement("no_such_simulator", "pip install 'rollout-engine[absent]'"),)


@pytest.fixture
def absent(monkeypatch: pytest.MonkeyPatch) -> None:
    point = EntryPoint("absent", f"{__name__}:Absent", "rollout.envs")
    monkeypatch.setattr(listing, "families", lambda: {"absent": point})
    monkeypatch.setattr(listing, "load_simulator", lambda name: Absent)


@pytest.mark.usefixtures("absent")
def test_a_missing_extra_is_shown_with_its_whole_command() -> None:
    out = io.StringIO()
    listing.print_catalogue(Console(file=out, width=400, markup=False))
    assert "pip install 'rollout-engine[absent]'" in out.getvalue()


@pytest.mark.usefixtures("absent")
def test_a_missing_extra_is_no_obstacle_to_the_catalogue_as_json() -> None:
    family = json.loads(listing.catalogue_json())["families"]["absent"]
    assert family["installed"] is False
    assert family["install"] == "pip install 'rollout-engine[absent]'"
    assert "absent:mt10" in family["targets"]


def strict(text: str) -> Any:
    return json.loads(text, parse_constant=pytest.fail)


def test_the_catalogue_as_json_has_everything_that_can_be_asked_for(tmp_path: Path) -> None:
    done = rollout("list", "--json", cwd=tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    catalogue = strict(done.stdout)
    assert set(catalogue["policies"]) == set(known_policies())
    libero = catalogue["families"]["libero"]
    assert set(libero) == {"installed", "install", "targets", "aliases", "options"}
    assert libero["targets"] == [f"libero:{name}" for name in LiberoSimulator.names]
    assert libero["aliases"]["libero_spatial"] == "libero:spatial"
    assert libero["options"] == dict(LiberoSimulator.options)
    assert "metaworld:window-open-v3" in catalogue["families"]["metaworld"]["targets"]
    assert catalogue["families"]["gym"]["targets"] == []


def test_a_family_as_json_is_its_part_of_the_catalogue(tmp_path: Path) -> None:
    one = strict(rollout("list", "metaworld", "--json", cwd=tmp_path).stdout)
    assert list(one["families"]) == ["metaworld"]


def test_a_targets_tasks_as_json_are_all_that_is_printed(tmp_path: Path) -> None:
    done = rollout("list", COUNT, "--json", cwd=tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    [suite] = strict(done.stdout)["suites"]
    assert suite["suite"] == COUNT
    assert "gymnasium" in suite["versions"]
    [task] = suite["tasks"]
    assert set(task) == {"task", "task_id", "instruction", "horizon", "n_init_states"}
    assert (task["task"], task["task_id"], task["n_init_states"]) == ("toy/Count-v0", 0, None)


@pytest.mark.libero
def test_liberos_instructions_as_json_come_without_a_word_of_liberos_own(tmp_path: Path) -> None:
    done = rollout("list", "libero:spatial", "--json", cwd=tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    [suite] = strict(done.stdout)["suites"]
    assert len(suite["tasks"]) == 10
    assert {task["horizon"] for task in suite["tasks"]} == {280}
    assert {"libero", "robosuite", "mujoco"} <= set(suite["versions"])


def blocking(package: str, folder: Path) -> dict[str, str]:
    """An environment in which `package` cannot be imported, as where its extra is not installed."""
    (folder / "sitecustomize.py").write_text(
        "import sys\n"
        "class Missing:\n"
        "    def find_spec(self, name, path=None, target=None):\n"
        f"        if name == {package!r}: raise ModuleNotFoundError(name=name)\n"
        "sys.meta_path.insert(0, Missing())\n"
    )
    return os.environ | {"PYTHONPATH": f"{folder}:{TESTS}"}


def listed(arguments: list[str], cwd: Path, environ: Mapping[str, str]) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", "from rollout.cli import main; main()", "list", *arguments],
        cwd=cwd,
        env=environ,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=DEADLINE_S,
        check=False,
    )


def test_the_tasks_of_what_is_not_installed_are_one_line_on_stderr(tmp_path: Path) -> None:
    done = listed(["libero:spatial", "--json"], tmp_path, blocking("libero", tmp_path))
    assert (done.returncode, done.stdout) == (2, "")
    assert len(done.stderr.splitlines()) == 1
    assert "pip install 'rollout-engine[libero]'" in done.stderr
    catalogue = listed(["--json"], tmp_path, blocking("libero", tmp_path))
    assert strict(catalogue.stdout)["families"]["libero"]["installed"] is False


@pytest.mark.parametrize(
    ("target", "says"),
    [
        ("libero:spatal", "libero:spatial"),
        ("libro:spatial", "libero:spatial"),
        ("gym:toys:toy/Cuont-v0", "Count"),
        ("nothing", "unknown target"),
    ],
)
def test_a_wrong_target_is_one_line_and_no_json(target: str, says: str, tmp_path: Path) -> None:
    done = rollout("list", target, "--json", cwd=tmp_path)
    assert (done.returncode, done.stdout) == (2, "")
    assert len(done.stderr.splitlines()) == 1
    assert says in done.stderr


def shell(arguments: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    command = f"{sys.executable} -c 'from rollout.cli import main; main()' {arguments}"
    return subprocess.run(
        ["bash", "-c", command], cwd=cwd, capture_output=True, text=True, timeout=DEADLINE_S, check=False
    )


def test_a_reader_that_has_enough_is_no_error(tmp_path: Path) -> None:
    done = shell("list --json | head -c 1; echo ${PIPESTATUS[0]}", tmp_path)
    assert (done.stdout, done.stderr) == ("{0\n", "")


def test_a_full_disk_is_said(tmp_path: Path) -> None:
    done = shell("list --json > /dev/full", tmp_path)
    assert done.returncode == 1
    assert done.stderr == "rollout: cannot write standard output: No space left on device\n"


@pytest.fixture
def run(tmp_path: Path) -> Path:
    done = rollout(
        "run", COUNT, "--policy", "random", "--episodes", "4", "--display", "none", "--out", "r", cwd=tmp_path
    )
    assert done.returncode == 0, done.stderr
    return tmp_path / "r"


def test_metrics_go_into_the_results_directory_or_a_file_or_a_pipe(run: Path) -> None:
    inside = rollout("export", "r", "--metrics", cwd=run.parent)
    assert (inside.returncode, inside.stdout, inside.stderr) == (0, "", "metrics in r/metrics.json\n")
    metrics = strict((run / "metrics.json").read_text())
    assert (metrics["n_episodes"], metrics["pc_success"], metrics["n_missing"]) == (4, 50.0, 0)
    assert metrics["eval_s"] > 0
    elsewhere = rollout("export", "r", "--metrics", "m.json", cwd=run.parent)
    assert elsewhere.returncode == 0
    assert strict((run.parent / "m.json").read_text()) == metrics
    piped = rollout("export", "r", "--metrics", "-", cwd=run.parent)
    assert (piped.returncode, piped.stderr) == (0, "")
    assert strict(piped.stdout) == metrics


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ([".", "--metrics"], "not a results directory"),
        (["nowhere", "--metrics"], "nowhere is not a results directory"),
        (["."], "--metrics"),
        ([], "DIR"),
        ([".", "--metric"], "--metrics"),
    ],
)
def test_an_export_of_nothing_is_one_line_and_exit_code_2(
    arguments: list[str], says: str, tmp_path: Path
) -> None:
    done = rollout("export", *arguments, cwd=tmp_path)
    assert (done.returncode, done.stdout) == (2, "")
    assert len(done.stderr.splitlines()) == 1
    assert says in done.stderr
