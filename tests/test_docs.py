"""The documentation is true: its commands parse, its examples run, its tables name the fields there are."""

from __future__ import annotations

import ast
import os
import re
import shlex
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import click
import msgspec
import pytest

import rollout
from rollout import errors
from rollout.arguments import ALIASES, settings
from rollout.cli import cli
from rollout.display import json as events
from rollout.display.base import WorkerState
from rollout.envs.base import Simulator
from rollout.results import efficiency, export, summary
from rollout.results.header import Header
from rollout.sim import protocol
from rollout.types import EpisodeFailure, EpisodeResult, Outcome, Spent, TaskInfo
from test_imports import LAYERS

ROOT = Path(__file__).parent.parent
PAGES = sorted((ROOT / "docs").glob("*.md"))
TEXTS = [*PAGES, *(path for path in (ROOT / "README.md", ROOT / "CONTRIBUTING.md") if path.exists())]
RUNNABLE = "<!-- runnable -->"
DEADLINE_S = 60.0

_FENCE = re.compile(r'^( *)```([^\s`]*)(?: title="([^"]+)")?\n(.*?)^\1```$', re.MULTILINE | re.DOTALL)

# Runs blocks of a page one after the other, each in names of its own, as a script would.
_RUNNER = """
import sys
for number, path in enumerate(sys.argv[1:], 1):
    print(f"=== block {number}", flush=True)
    exec(compile(open(path).read(), path, "exec"), {"__name__": "__main__"})
"""


class Block(NamedTuple):
    language: str
    title: str
    text: str
    runnable: bool


def blocks(page: Path) -> Iterator[Block]:
    text = page.read_text()
    for match in _FENCE.finditer(text):
        indent, language, title, body = match.groups()
        lines = [line.removeprefix(indent) for line in body.splitlines(keepends=True)]
        yield Block(language, title or "", "".join(lines), text[: match.start()].rstrip().endswith(RUNNABLE))


def commands(page: Path) -> Iterator[list[str]]:
    """The `rollout` commands in a page's blocks, as words, up to a pipe or another command."""
    for block in blocks(page):
        if block.language not in ("console", "bash", "sh", "shell", ""):
            continue
        for line in block.text.replace("\\\n", " ").splitlines():
            for command in re.split(r"&&|\||;", line.strip().removeprefix("$ ")):
                words = shlex.split(command, comments=True) if re.search(r"(^|[ /])rollout ", command) else []
                while words and re.fullmatch(r"\w+=.*", words[0]):
                    words.pop(0)
                if words and Path(words[0]).name == "rollout":
                    yield words[1:]


def code(text: str) -> set[str]:
    """What stands in backticks."""
    return set(re.findall(r"`([^`\n]+)`", re.sub(_FENCE, "", text)))


def page(name: str) -> str:
    return (ROOT / "docs" / name).read_text()


def section(text: str, heading: str) -> str:
    """The part of a page under `heading`."""
    match = re.search(rf"^(#+) {re.escape(heading)}$\n(.*?)(?=^#{{1,2}} |\Z)", text, re.MULTILINE | re.DOTALL)
    assert match, f"no heading {heading!r}"
    return match[2]


def fields(*structs: type[msgspec.Struct]) -> set[str]:
    return {name for struct in structs for name in struct.__struct_fields__}


SHOWN = [
    pytest.param(words, id=f"{path.name}: {' '.join(words)}") for path in TEXTS for words in commands(path)
]
RUN_OPTIONS = [param for param in cli.commands["run"].params if isinstance(param, click.Option)]


@pytest.mark.parametrize("words", SHOWN)
def test_every_command_that_is_shown_parses(words: list[str]) -> None:
    name, *arguments = words
    if name.startswith("-"):
        return
    assert name in cli.commands, f"there is no command {name}"
    if "--help" not in arguments:
        cli.commands[name].make_context(name, arguments)  # raises where an option or its value does not exist


@pytest.mark.parametrize("path", TEXTS, ids=lambda path: path.name)
def test_every_option_that_is_mentioned_exists(path: Path) -> None:
    params = [param for command in cli.commands.values() for param in command.params]
    known = {"--help"} | {option for param in params for option in (*param.opts, *param.secondary_opts)}
    mentioned = {word for span in code(path.read_text()) for word in re.findall(r"^--[a-z][a-z-]*", span)}
    assert mentioned <= known


def test_every_option_is_explained() -> None:
    told = " ".join(code(page("evaluating.md")) | code(page("displays.md")))
    assert len(RUN_OPTIONS) > 20
    assert [option.opts[0] for option in RUN_OPTIONS if option.opts[0] not in told] == []


def test_every_setting_is_in_the_table_with_its_option() -> None:
    table = section(page("evaluating.md"), "Settings")
    rows = re.findall(r"^\| `(\w+)` \|[^|]*\| (.*?) ?\|$", table, re.MULTILINE)
    assert [name for name, _ in rows] == list(rollout.EvalConfig.__struct_fields__)
    told = {ALIASES.get(name, name): option.strip("`") for name, option in rows if option.startswith("`")}
    options = {str(option.name): option.opts[0] for option in RUN_OPTIONS}
    del options["policy"], options["file"]  # not settings
    assert told == {ALIASES.get(name, name): option for name, option in options.items()}


@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.name)
def test_configuration_files_are_valid(path: Path, tmp_path: Path) -> None:
    for block in blocks(path):
        if block.language == "toml":
            values = tomllib.loads(block.text)
            assert values
            if block.title == "run.toml":
                file = tmp_path / "run.toml"
                file.write_text(block.text)
                policy, chosen = settings((), {"file": str(file)})
                assert rollout.EvalConfig.create(**chosen).episodes == values["episodes"]
                assert policy == values["policy"]


@pytest.mark.parametrize("path", TEXTS, ids=lambda path: path.name)
def test_python_that_is_shown_is_python(path: Path) -> None:
    for block in blocks(path):
        if block.language == "python":
            compile(block.text, f"{path.name} {block.title}", "exec", ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
            assert not re.search(r"^.{111,}$", block.text, re.MULTILINE)


RUN_PAGES = [path for path in PAGES if RUNNABLE in path.read_text()]


@pytest.mark.parametrize("path", RUN_PAGES, ids=lambda path: path.name)
def test_the_runnable_examples_of_a_page_run_and_print_what_it_shows(path: Path, tmp_path: Path) -> None:
    scripts, shown = [], []
    previous: Block | None = None
    for block in blocks(path):
        if previous is not None and previous.runnable:
            shown.append(block.text if block.language == "text" else None)
        if block.runnable:
            script = tmp_path / f"block_{len(scripts) + 1}.py"
            script.write_text(block.text)
            scripts.append(script.name)
        elif block.title.endswith(".py"):
            (tmp_path / block.title).write_text(block.text)
        elif block.title == "pyproject.toml":
            install(tomllib.loads(block.text)["project"], tmp_path)
        previous = block
    outputs = run(scripts, tmp_path)
    assert len(outputs) == len(scripts) > 0
    for output, expected in zip(outputs, [*shown, None], strict=False):
        assert output.strip()
        assert expected is None or output == expected


def install(project: dict[str, object], folder: Path) -> None:
    """What `pip install -e` leaves behind, as far as `importlib.metadata` reads it."""
    if "name" not in project:
        return
    info = folder / f"{str(project['name']).replace('-', '_')}-{project['version']}.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Name: {project['name']}\nVersion: {project['version']}\n")
    groups = project["entry-points"]
    assert isinstance(groups, dict)
    (info / "entry_points.txt").write_text(
        "".join(
            f"[{group}]\n" + "".join(f"{name} = {value}\n" for name, value in points.items())
            for group, points in groups.items()
        )
    )


def run(scripts: list[str], folder: Path) -> list[str]:
    """Run scripts in one fresh interpreter in `folder`, and return what each printed."""
    environ = {**os.environ, "PYTHONPATH": str(folder), "PYTHONDONTWRITEBYTECODE": "1"}
    command = [sys.executable, "-W", "error", "-c", _RUNNER, *scripts]
    done = subprocess.run(
        command,
        cwd=folder,
        env=environ,
        check=False,
        capture_output=True,
        text=True,
        timeout=DEADLINE_S,
        stdin=subprocess.DEVNULL,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return re.split(r"^=== block \d+\n", done.stdout, flags=re.MULTILINE)[1:]


@pytest.mark.parametrize(
    ("name", "heading", "expected"),
    [
        ("results.md", "episodes.jsonl", fields(Header, EpisodeResult, EpisodeFailure) | {"kind"}),
        ("results.md", "Outcomes", {str(outcome) for outcome in Outcome}),
        ("results.md", "episodes.jsonl", fields(Spent)),
        (
            "results.md",
            "summary.json",
            fields(summary.Summary, summary.TaskStats, summary.Timing)
            | fields(summary.PolicyTiming, summary.BatchTiming)
            | fields(efficiency.Bound, efficiency.Shares)
            | {str(limit) for limit in efficiency.Limit},
        ),
        (
            "results.md",
            "eval_info.json",
            fields(export.EvalInfo, export.TaskRecord, export.TaskMetrics, export.Overall),
        ),
        (
            "displays.md",
            "JSON events",
            {"event"} | fields(events.Start, events.Progress, events.Episode, events.Note),
        ),
        (
            "displays.md",
            "JSON events",
            {str(state) for state in WorkerState} | {"end", "progress", "episode", "start"},
        ),
        ("adding-a-policy.md", "What it reads", fields(rollout.PolicySpec)),
        (
            "adding-a-policy.md",
            "An object with `infer`",
            {*rollout.Request.__slots__, "noise_seed"}
            | fields(rollout.EpisodeSpec)
            | fields(TaskInfo) - {"suite", "task_id"},
        ),
        (
            "architecture.md",
            "Errors",
            {name for name, value in vars(errors).items() if isinstance(value, type)},
        ),
        (
            "architecture.md",
            "The wire",
            {message.__name__ for message in (*protocol.Command.__args__, *protocol.Reply.__args__)}
            | {"MAX_FRAME"},
        ),
        (
            "quickstart.md",
            "The files",
            {"episodes.jsonl", "actions.msgpack", export.EVAL_INFO, summary.SUMMARY},
        ),
    ],
)
def test_every_field_is_told_where_a_reader_looks_for_it(name: str, heading: str, expected: set[str]) -> None:
    assert expected - code(section(page(name), heading)) == set()


def test_every_member_of_a_simulator_is_explained() -> None:
    told = section(page("adding-a-benchmark.md"), "What each part is for")
    members = [
        *Simulator.__annotations__,
        *(name for name in vars(Simulator) if not name.startswith("_")),
        "__init__",
    ]
    assert "build" in members
    assert [name for name in members if not re.search(rf"`{name}[`(]", told) and name != "info"] == []


def test_the_layers_are_the_ones_that_are_tested() -> None:
    told = set(re.split(r"[\s,]+", section(page("architecture.md"), "Layers")))
    assert {name for row in LAYERS for name in row} - told == set()


def test_the_limit_of_a_frame_is_the_protocols() -> None:
    assert protocol.MAX_FRAME == 1 << 30
    assert "**1 GiB**" in page("architecture.md")


def test_every_page_is_in_the_navigation() -> None:
    navigation = (ROOT / "mkdocs.yml").read_text().partition("\nnav:")[2]
    assert [path.name for path in PAGES if f": {path.name}\n" not in navigation] == []


def test_the_extras_that_are_named_exist() -> None:
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    named = {
        extra
        for path in TEXTS
        for group in re.findall(r"(?:'\.|rollout-engine)\[([\w,]+)\]", path.read_text())
        for extra in group.split(",")
    }
    assert named
    assert named <= extras.keys()
