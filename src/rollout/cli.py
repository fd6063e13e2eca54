"""The command line: arguments → `EvalConfig` → `evaluate`, and exit codes.

0 every episode measured; 1 some episodes are errors, or the policy failed; 2 bad usage, one line and no traceback;
130 interrupted (143 by SIGTERM), partial results kept.
"""

from __future__ import annotations

import os
import signal
import sys
import traceback
from collections.abc import Callable, Coroutine, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn, TypeVar

import anyio
import click

from rollout.arguments import Suggesting, run_options, settings
from rollout.bench import bench_command
from rollout.config import DisplayName, EvalConfig, nearest
from rollout.errors import PolicyError, RolloutError, UsageError
from rollout.resources import process_age
from rollout.results.files import pretty_json
from rollout.results.reading import holds_journal
from rollout.results.report import Report
from rollout.serve.options import serve_options
from rollout.stop import Stop
from rollout.streams import leave, open_standard_streams, say, write
from rollout.tune.options import tune_options
from rollout.types import SuiteInfo
from rollout.verify.options import verify_options

if TYPE_CHECKING:
    from rich.console import Console

__all__ = ["main"]

T = TypeVar("T")

EXIT_ERRORS, EXIT_USAGE = 1, 2
WIDE = 1000
RESUME = "; go on with --resume and the same --out"


def main(argv: Sequence[str] | None = None) -> NoReturn:
    """Entry point of the `rollout` command."""
    open_standard_streams()
    # Before torch is imported: threads of a CPU policy that spin between two forwards take the workers' cores (200
    # episodes of the example policy on 2 cores: 7 s in place of 11). No result depends on it; the user's setting wins.
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    # As `python -m` does: what lies in the working directory can be named as a policy or an environment.
    if os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())
    try:
        arguments = sys.argv[1:] if argv is None else list(argv)
        code = cli.main(args=arguments, prog_name="rollout", standalone_mode=False, obj=tuple(arguments))
    except click.exceptions.NoArgsIsHelpError as exc:
        click.echo(exc.format_message())
        code = EXIT_USAGE
    except click.NoSuchOption as exc:
        code = say(
            f"no such option {exc.option_name}{nearest(exc.option_name, exc.possibilities or ())}", EXIT_USAGE
        )
    except click.ClickException as exc:
        code = say(exc.format_message().replace("\n", " "), EXIT_USAGE)
    except UsageError as exc:
        code = say(str(exc), EXIT_USAGE)
    except PolicyError as exc:
        if exc.__cause__ is not None:
            traceback.print_exception(exc.__cause__)
        code = say(str(exc), EXIT_ERRORS)
    except RolloutError as exc:
        code = say(str(exc), EXIT_ERRORS)
    except (KeyboardInterrupt, click.Abort):
        code = say("interrupted", 128 + signal.SIGINT)
    leave(code if isinstance(code, int) else 0)


@click.group(cls=Suggesting, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="rollout-engine", prog_name="rollout")
def cli() -> None:
    """How often does your policy succeed? Evaluate it on LIBERO, Meta-World or any Gymnasium environment."""


@cli.command()
@click.argument("targets", nargs=-1, metavar="TARGET…")
@run_options
@click.pass_obj
def run(arguments: Sequence[str] | None, /, targets: tuple[str, ...], **options: Any) -> int:
    """Evaluate a policy on one or more targets.

    For example: rollout run metaworld:mt10 --policy expert --episodes 3
    """
    policy, values = settings(targets, options)
    config = EvalConfig.create(**values)
    from rollout.api import loop_options

    try:
        return anyio.run(_run, config, policy, arguments, backend_options=loop_options())
    except KeyboardInterrupt:  # Python's own: with `--workers 0`, or from before the run could hear of it
        kept = config.out is not None and holds_journal(Path(config.out))
        return say("stopped by SIGINT" + (RESUME if kept else ""), 128 + signal.SIGINT)


async def _run(config: EvalConfig, policy: str, arguments: Sequence[str] | None) -> int:
    from rollout.api import Engine

    # Inside the parent, a simulator that hangs, or a debugger, must leave Ctrl-C to Python.
    stop, engine = Stop(ctrl_c=config.workers != 0), Engine(config)

    async def evaluate() -> Report:
        async with engine:
            return await engine.evaluate(policy, display=_display(config))

    report = await stop.guard(evaluate, engine.interrupt)
    if report is not None and config.display not in ("json", "none"):
        from rollout.display.ending import print_ending

        print_ending(report, arguments)
    if stop.received is not None:
        partial_results = report is not None and report.out and not report.summary.complete
        return say(stop.farewell() + (RESUME if partial_results else ""), stop.exit_code)
    if report is None or not report.summary.complete:
        return say("the run ended before its time, and nobody stopped it", EXIT_ERRORS)
    return EXIT_ERRORS if report.summary.overall.n_error else 0


def _display(config: EvalConfig) -> DisplayName:
    """With `--workers 0` the terminal belongs to the debugger."""
    return "plain" if config.workers == 0 and config.display in ("auto", "live") else config.display


@cli.command(name="list")
@click.argument("target", required=False)
@click.option("--json", "as_json", is_flag=True, help="For programs: strict JSON, and nothing else.")
def list_(target: str | None, as_json: bool) -> int:
    """List what can be run, or the tasks of TARGET."""
    from rich.console import Console

    from rollout import listing
    from rollout.envs.registry import families

    # In a pipe nothing is folded: names are there to be searched for.
    console = Console(markup=False, width=None if sys.stdout.isatty() else WIDE)
    if target is None or target in families():
        if as_json:
            write(listing.catalogue_json(target))
        else:
            listing.print_catalogue(console, target)
        return 0
    stop = Stop()
    suites = anyio.run(stop.guard, partial(_describe, target), lambda: False)
    if suites is None:
        return say(stop.farewell(), stop.exit_code)
    if as_json:
        write(listing.suites_json(suites))
        return 0
    for suite in suites:
        listing.print_tasks(console, suite)
    return 0


async def _describe(target: str) -> Sequence[SuiteInfo]:
    from rollout.api import Engine

    async with Engine(target) as engine:
        return tuple((await engine.describe()).values())


@cli.command()
@serve_options
def serve(**options: Any) -> int:
    """Offer a policy to simulators elsewhere, over openpi's websocket protocol.

    For example: rollout serve --policy examples.mt10_policy:load
    """
    from rollout.serve import serve_forever

    return say(*serve_forever(options))


@cli.command()
@click.argument("directory", metavar="DIR", type=click.Path(path_type=Path))
@click.option(
    "--metrics",
    "file",
    is_flag=False,
    flag_value="",
    type=click.Path(),
    metavar="[FILE]",
    help="Numbers for dashboards, as one flat JSON object; - is standard output.  [DIR/metrics.json]",
)
def export(directory: Path, file: str | None) -> None:
    """Write the results in DIR, of a finished run or a running one, in another form.

    For example: rollout export runs/mt10 --metrics
    """
    from rollout.results.metrics import METRICS, read_metrics, write_metrics

    if file is None:
        raise UsageError("nothing to export: say what, e.g. --metrics")
    metrics = read_metrics(directory)
    if file == "-":
        write(pretty_json(metrics))
        return
    path = Path(file) if file else directory / METRICS
    write_metrics(path, metrics)
    click.echo(f"metrics in {path}", err=True)


@cli.command()
@click.option(
    "--measure", is_flag=True, help="Build a scene of each simulator too, for what a worker holds (20 s)."
)
def doctor(measure: bool) -> int:
    """Check this machine, each finding with its fix."""
    from rich.console import Console

    from rollout.doctor import diagnose, print_findings

    findings = diagnose(measure=measure)
    print_findings(findings, Console())
    return EXIT_ERRORS if any(finding.level == "error" for finding in findings) else 0


@cli.command()
@click.argument("targets", nargs=-1, metavar="TARGET…")
@verify_options
def verify(targets: tuple[str, ...], as_json: bool, **options: Any) -> int:
    """Is the result the same, bit for bit, with one worker and with several, with and without batches?

    Runs a sample both ways and compares every episode; a difference is explained. Nothing is kept.

    For example: rollout verify metaworld:mt10 --policy expert
    """
    policy, values = settings(targets, options)
    del values["out"]  # nothing is kept
    if as_json:
        values["display"] = "none"
    from rollout.verify import verify
    from rollout.verify.printing import print_verdict

    verdict, code = _measure(partial(verify, policy, **values), as_json, print_verdict)
    return code if verdict is None or verdict.equal else EXIT_ERRORS


@cli.command()
@click.argument("targets", nargs=-1, metavar="TARGET…")
@tune_options
@click.pass_obj
def tune(
    arguments: Sequence[str] | None,
    /,
    targets: tuple[str, ...],
    budget_s: float,
    as_json: bool,
    **options: Any,
) -> int:
    """Measure simulators and policy, and say what to run with and how long it will take.

    For example: rollout tune metaworld:mt10 --policy expert
    """
    policy, values = settings(targets, options)
    given = tuple(arguments or ())[1:] or (*targets, "--policy", policy)
    from rollout.tune import tune
    from rollout.tune.printing import print_tuning

    work = partial(tune, policy, arguments=given, budget_s=budget_s, age_s=process_age(), **values)
    return _measure(work, as_json, print_tuning)[1]


def _measure(
    work: Callable[[], Coroutine[Any, Any, T]], as_json: bool, show: Callable[[Any, Console], None]
) -> tuple[T | None, int]:
    """Run `work` and print what it gives; None where a signal ended it. With the exit code."""
    from rich.console import Console

    from rollout.api import loop_options

    stop = Stop()
    given: T | None = anyio.run(stop.guard, work, lambda: False, backend_options=loop_options())
    if given is None or stop.received is not None:
        return None, say(stop.farewell(), stop.exit_code)
    if as_json:
        write(pretty_json(given))
    else:
        show(given, Console())
    return given, 0


cli.add_command(bench_command)
