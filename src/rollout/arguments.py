"""The options of `rollout run`, and how a TOML file and they become settings."""

from __future__ import annotations

import json
import re
import time
import tomllib
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, get_args

import click

from rollout.config import DisplayName, EvalConfig, nearest
from rollout.errors import UsageError

__all__ = ["Among", "Suggesting", "run_options", "settings"]

# How a command line names what `EvalConfig` calls otherwise.
ALIASES = {
    "set": "options",
    "policy_arg": "policy_args",
    "step_timeout": "step_timeout_s",
    "reset_timeout": "reset_timeout_s",
    "start_timeout": "start_timeout_s",
}


class Suggesting(click.Group):
    """A group that names the nearest command for an unknown one."""

    def resolve_command(self, ctx: click.Context, args: list[str]) -> Any:
        try:
            return super().resolve_command(ctx, args)
        except click.UsageError as exc:
            known = ", ".join(self.commands)
            message = f"no such command {args[0]!r}{nearest(args[0], self.commands)} (known: {known})"
            raise click.UsageError(message, ctx) from exc


class Among(click.Choice[str]):
    """A choice that names the nearest value for a wrong one."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        known = [str(choice) for choice in self.choices]
        if value not in known:
            self.fail(f"{value!r} is not one of {', '.join(known)}{nearest(value, known)}", param, ctx)
        return value


class _Number(click.ParamType):  # type: ignore[type-arg]
    """A whole number, or one of some words."""

    def __init__(self, *words: str) -> None:
        self.words = words
        self.name = "|".join(("N", *words))

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        if value in self.words:
            return value
        try:
            return int(value)
        except ValueError:
            valid = " or ".join(("a whole number", *self.words))
            self.fail(f"{value!r} is not {valid}{nearest(str(value), self.words)}", param, ctx)


class _TaskList(click.ParamType):  # type: ignore[type-arg]
    """`0,3,7` or `0-4,9`."""

    name = "LIST"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        tasks: list[int] = []
        for part in str(value).split(","):
            match = re.fullmatch(r"\s*(\d+)(?:-(\d+))?\s*", part)
            if match is None:
                self.fail(f"{value!r}: give task numbers, e.g. 0,3,7 or 0-4", param, ctx)
            first = int(match[1])
            tasks += range(first, int(match[2] or first) + 1)
        return tuple(tasks)


class _Shard(click.ParamType):  # type: ignore[type-arg]
    """`K/N`."""

    name = "K/N"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        match = re.fullmatch(r"(\d+)/(\d+)", str(value))
        if match is None:
            self.fail(f"{value!r}: give K/N, e.g. 1/4 for the first of four", param, ctx)
        return int(match[1]), int(match[2])


_OPTIONS = (
    click.option(
        "--policy",
        metavar="SPEC",
        help="random, zero, expert, lerobot:PATH, openpi:ws://…, gr00t:tcp://…, or package.module:factory.",
    ),
    click.option(
        "--policy-arg", multiple=True, metavar="KEY=VALUE", help="An argument of the policy's factory."
    ),
    click.option("--episodes", type=int, metavar="N", help="Episodes per task.  [10]"),
    click.option(
        "--tasks", type=_TaskList(), help="Task numbers within each suite, e.g. 0,3,7 or 0-4.  [all]"
    ),
    click.option("--seed", type=int, metavar="N", help="Episode e of a task has seed N + e.  [1000]"),
    click.option(
        "--horizon", type=int, metavar="N", help="Most steps an episode may take.  [the suite's own]"
    ),
    click.option(
        "--n-action-steps", type=int, metavar="N", help="Actions executed of each chunk.  [the policy's]"
    ),
    click.option(
        "--temporal-ensemble",
        type=float,
        metavar="DECAY",
        help="Decide at every step, average the chunks; 0.01 as ACT.  [the policy's]",
    ),
    click.option(
        "--clip-actions", is_flag=True, default=None, help="Clip actions into their bounds, and count them."
    ),
    click.option(
        "--workers",
        type=_Number("auto"),
        metavar="N|auto",
        help="Simulator processes; 0 debugs in this one.  [auto]",
    ),
    click.option(
        "--max-batch", type=_Number("auto"), metavar="N|auto", help="Most decisions in one forward.  [auto]"
    ),
    click.option("--max-wait-ms", type=float, metavar="X", help="How long a batch may wait to fill.  [0]"),
    click.option("--device", metavar="D", help="Where the policy runs: auto, cpu, cuda, cuda:1.  [auto]"),
    click.option("--dtype", type=Among(["fp32", "bf16", "fp16"]), help="The policy's number format.  [fp32]"),
    click.option("--compile", is_flag=True, default=None, help="torch.compile the policy."),
    click.option(
        "--trust-remote-code",
        is_flag=True,
        default=None,
        help="Let a checkpoint run Python that it names or brings along.",
    ),
    click.option(
        "--deterministic/--no-deterministic",
        default=None,
        help="Whether batches change no bit of an action.  [on CPU]",
    ),
    click.option(
        "--protocol", metavar="NAME", help="Whose evaluation rules: lerobot, openpi, vla-eval.  [lerobot]"
    ),
    click.option(
        "--set", "options", multiple=True, metavar="KEY=VALUE", help="A simulator's option; see the docs."
    ),
    click.option("--render", type=Among(["auto", "gpu", "cpu"]), help="Where frames are rendered.  [auto]"),
    click.option(
        "--video",
        type=_Number("none", "failures", "all"),
        metavar="none|failures|all|N",
        help="Which episodes are filmed; a number: the first N of each task.  [none]",
    ),
    click.option(
        "--out", type=click.Path(file_okay=False), metavar="DIR", help="Results directory.  [runs/…]"
    ),
    click.option("--resume", is_flag=True, default=None, help="Go on with the run in --out."),
    click.option("--shard", type=_Shard(), help="Run the K-th of N parts of the plan."),
    click.option("--retries", type=int, metavar="N", help="Tries more after a worker's death.  [2]"),
    click.option(
        "--recycle-after",
        type=int,
        metavar="N",
        help="Replace a worker after N episodes; one that leaks memory is replaced anyway.",
    ),
    click.option("--step-timeout", type=float, metavar="S", help="Seconds that one step may take.  [60]"),
    click.option("--reset-timeout", type=float, metavar="S", help="Seconds to build and reset.  [300]"),
    click.option("--start-timeout", type=float, metavar="S", help="Seconds to start and import.  [120]"),
    click.option("--display", type=Among(get_args(DisplayName)), help="How progress is shown.  [auto]"),
    click.option(
        "--config",
        "file",
        type=click.Path(dir_okay=False),
        metavar="FILE.toml",
        help="Settings from a file; the command line wins.",
    ),
)


def run_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Decorate a command with the options of `rollout run`."""
    for option in reversed(_OPTIONS):
        command = option(command)
    return command


def settings(targets: Sequence[str], options: Mapping[str, Any]) -> tuple[str, dict[str, Any]]:
    """The policy's spec, and `EvalConfig`'s fields: the file's, overridden by what the command line gave."""
    given = {name: value for name, value in options.items() if value is not None and value != ()}
    file = given.pop("file", None)
    values: dict[str, Any] = {"display": "auto"} | ({} if file is None else _read(Path(file)))
    if targets:
        values["targets"] = tuple(targets)
    if "options" in given:
        given["options"] = values.get("options", {}) | dict(_pair(text, "--set") for text in given["options"])
    if "policy_arg" in given:
        pairs = (_pair(text, "--policy-arg") for text in given.pop("policy_arg"))
        given["policy_args"] = values.get("policy_args", {}) | {key: _literal(value) for key, value in pairs}
    values |= {ALIASES.get(name, name): value for name, value in given.items()}
    values.setdefault("targets", ())
    if not values["targets"]:
        raise UsageError("no target: name at least one, e.g. metaworld:mt10 (see `rollout list`)")
    policy = values.pop("policy", None)
    if policy is None:
        raise UsageError("no policy: give one with --policy, e.g. --policy random (see `rollout list`)")
    values.setdefault("out", _default_out(values["targets"], policy))
    return policy, values


def _read(path: Path) -> dict[str, Any]:
    try:
        loaded = tomllib.loads(path.read_text())
    except OSError as exc:
        raise UsageError(f"--config {path}: {exc.strerror}") from exc
    except (tomllib.TOMLDecodeError, UnicodeDecodeError, RecursionError) as exc:
        raise UsageError(f"--config {path}: not a TOML file: {exc}") from exc
    values: dict[str, Any] = {}
    known = [*EvalConfig.__struct_fields__, *ALIASES, "policy"]
    for key, value in loaded.items():
        name = key.replace("-", "_")
        if name not in known:
            raise UsageError(f"--config {path}: unknown setting {key!r}{nearest(name, known)}")
        values[ALIASES.get(name, name)] = value
    if isinstance(values.get("targets"), str):
        values["targets"] = [values["targets"]]
    if isinstance(values.get("options"), dict):
        values["options"] = {key: _text(value) for key, value in values["options"].items()}
    return values


def _pair(text: str, option: str) -> tuple[str, str]:
    key, equals, value = text.partition("=")
    if not equals or not key:
        raise UsageError(f"{option} {text}: give KEY=VALUE")
    return key, value


def _literal(text: str) -> Any:
    """A JSON value where it is one, else the text itself."""
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return text


def _text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value)


def _default_out(targets: Sequence[str], policy: str) -> str:
    name = re.sub(r"[^\w.-]+", "-", f"{targets[0]}-{policy}").strip("-.")[:80]
    return str(Path("runs") / f"{time.strftime('%Y%m%d-%H%M%S')}-{name}")
