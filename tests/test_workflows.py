"""The workflows call what exists, with the least that they need."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
import pytest

from rollout.cli import cli
from rollout.envs.registry import resolve

yaml = pytest.importorskip("yaml", reason="PyYAML comes with the docs extra")

ROOT = Path(__file__).parent.parent
WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yml"))


def load(path: Path) -> dict[str, Any]:
    loaded: dict[Any, Any] = yaml.safe_load(path.read_text())
    return {"on" if key is True else str(key): value for key, value in loaded.items()}  # YAML 1.1: on is true


@pytest.fixture(params=WORKFLOWS, ids=lambda path: path.name)
def workflow(request: pytest.FixtureRequest) -> dict[str, Any]:
    return load(request.param)


def steps(workflow: dict[str, Any]) -> list[dict[str, Any]]:
    return [step for job in workflow["jobs"].values() for step in job["steps"]]


def expanded(job: dict[str, Any], text: str) -> Iterator[str]:
    """`text` for every entry of the job's matrix, with the job's variables filled in."""
    matrix = job.get("strategy", {}).get("matrix", {})
    entries = matrix.get("include") or [{"image": image} for image in matrix.get("image", [])] or [{}]
    for entry in entries:

        def fill(value: str, entry: dict[str, str] = entry) -> str:
            return re.sub(r"\$\{\{ matrix\.(\w+) \}\}", lambda match: entry[match[1]], value)

        variables = {name: fill(value) for name, value in job.get("env", {}).items()}
        yield re.sub(r"\$(?:\{(\w+)\}|(\w+))", lambda m, v=variables: v.get(m[1] or m[2], m[0]), fill(text))


def test_there_are_two_of_them() -> None:
    assert [path.name for path in WORKFLOWS] == ["ci.yml", "images.yml"]


def test_no_job_may_write_or_run_for_ever(workflow: dict[str, Any]) -> None:
    assert workflow["permissions"] == {"contents": "read"}
    assert "github.ref" in workflow["concurrency"]["group"]
    for name, job in workflow["jobs"].items():
        assert 0 < job["timeout-minutes"] <= 120, name
        assert "permissions" not in job
        assert re.fullmatch(r"ubuntu-\d\d\.\d\d", job["runs-on"]), "a machine that stays the same"
    assert "pull_request_target" not in workflow["on"], "a stranger's change would run with our rights"


def test_every_action_has_a_version_and_keeps_no_credentials(workflow: dict[str, Any]) -> None:
    used = [step for step in steps(workflow) if "uses" in step]
    assert used
    for step in used:
        assert re.fullmatch(r"(actions|docker)/[\w-]+@v\d+(\.\d+)*", step["uses"]), step["uses"]
        if step["uses"].startswith("actions/checkout@"):
            assert step["with"]["persist-credentials"] is False


def test_a_shell_is_given_no_text_of_github(workflow: dict[str, Any]) -> None:
    assert [step["run"] for step in steps(workflow) if "${{" in step.get("run", "")] == []


def test_ci_runs_the_script_with_what_it_needs() -> None:
    script = ROOT / ".ci" / "run"
    runs = [step["run"] for step in steps(load(ROOT / ".github/workflows/ci.yml")) if "run" in step]
    assert runs[-1] == ".ci/run"
    assert script.stat().st_mode & 0o111
    (wanted,) = re.findall(r'^packages="(.*)"$', script.read_text(), re.MULTILINE)
    installs = " ".join(runs)
    assert set(wanted.split()) <= set(installs.split()), "it would call apt-get without the right to"
    (python,) = [
        step for step in steps(load(ROOT / ".github/workflows/ci.yml")) if "setup-python" in str(step)
    ]
    assert python["with"]["python-version"].split() == ["3.12", "3.11"], "the last one is python3"


IMAGES = load(ROOT / ".github/workflows/images.yml")


def test_every_image_is_built_and_tried() -> None:
    names = {path.name.removeprefix("Dockerfile.") for path in (ROOT / "docker").glob("Dockerfile.*")}
    for job in IMAGES["jobs"].values():
        builds = [step for step in job["steps"] if "build-push-action" in step.get("uses", "")]
        assert len(builds) == 1
        files = set(expanded(job, builds[0]["with"]["file"]))
        assert files == {f"docker/Dockerfile.{name}" for name in names}
        assert all((ROOT / file).is_file() for file in files)
        assert builds[0]["with"]["context"] == "."
        assert not builds[0]["with"].get("push")
        for argument in builds[0]["with"].get("build-args", "").splitlines():
            name = argument.partition("=")[0]
            assert all(f"\nARG {name}=" in (ROOT / file).read_text() for file in files), name


def test_what_a_change_of_an_image_would_touch_starts_the_workflow() -> None:
    paths = IMAGES["on"]["pull_request"]["paths"]
    assert {"docker/**", "src/**", "pyproject.toml", ".dockerignore", ".github/workflows/images.yml"} <= set(
        paths
    )
    for path in paths:
        assert (ROOT / path.removesuffix("/**")).exists(), path


def docker_runs() -> list[tuple[list[str], list[str]]]:
    """Docker's options, and the arguments of `rollout`, of every container that the smoke job starts."""
    job = IMAGES["jobs"]["smoke"]
    found = []
    for step in job["steps"]:
        for script in expanded(job, step.get("run", "")):
            for line in script.replace("\\\n", " ").splitlines():
                words = shlex.split(line, comments=True)
                if words[:2] == ["docker", "run"]:
                    image = next(i for i, word in enumerate(words) if word.startswith("rollout-"))
                    arguments = words[image + 1 :]
                    redirected = arguments.index(">") if ">" in arguments else len(arguments)
                    found.append((words[2:image], arguments[:redirected]))
    return found


def test_containers_have_no_network_and_are_not_root() -> None:
    runs = docker_runs()
    assert len(runs) == 8, "four for each image"
    for options, _ in runs:
        assert options[(at := options.index("--network")) : at + 2] == ["--network", "none"]
        assert "--rm" in options
        assert "--privileged" not in options
        assert "--gpus" not in options
        users = [options[i + 1] for i, word in enumerate(options) if word == "--user"]
        assert all(int(user.partition(":")[0]) > 0 for user in users)


def test_commands_and_options_in_containers_exist() -> None:
    told = [arguments for _, arguments in docker_runs()]
    assert {arguments[0] for arguments in told} == {"run", "export", "list"}
    for name, *arguments in told:
        command = cli.commands[name]
        assert isinstance(command, click.Command)
        context = command.make_context(name, list(arguments))  # raises where an option does not exist
        for target in (*context.params.get("targets", ()), context.params.get("target")):
            assert target is None or resolve(target)[1]


def test_one_episode_is_evaluated_and_its_metrics_and_instructions_are_kept() -> None:
    runs = [arguments for _, arguments in docker_runs() if arguments[0] == "run"]
    for arguments in runs:
        assert arguments[arguments.index("--episodes") + 1] == "1"
        assert arguments[arguments.index("--tasks") + 1] == "0"
        assert arguments[arguments.index("--render") + 1] == "cpu"
    (upload,) = [
        step for step in IMAGES["jobs"]["smoke"]["steps"] if "upload-artifact" in step.get("uses", "")
    ]
    assert upload["with"]["path"].split() == ["results/smoke/metrics.json", "results/instructions.json"]
    assert upload["with"]["if-no-files-found"] == "error"
    text = " ".join(step.get("run", "") for step in IMAGES["jobs"]["smoke"]["steps"])
    for needed in ("--out smoke", "export smoke --metrics", "--json > results/instructions.json"):
        assert needed in text
