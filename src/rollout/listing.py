"""`rollout list`: what can be run, for people and (`--json`) for programs."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from msgspec import Struct
from rich.console import Console
from rich.table import Table

from rollout.display.text import one_line
from rollout.envs.registry import families, load_simulator, missing_requirement
from rollout.policies.load import known_policies, policy_form
from rollout.results.files import pretty_json
from rollout.types import SuiteInfo

__all__ = [
    "Catalogue",
    "Family",
    "Suites",
    "catalogue",
    "catalogue_json",
    "print_catalogue",
    "print_tasks",
    "suites_json",
]

SHORT = 13  # suites of a family in the overview: Meta-World's groups, behind which its 50 single tasks follow


class Family(Struct, frozen=True, kw_only=True):
    """A simulator family, installed or not."""

    installed: bool
    install: str | None  # the command that installs what is missing; None where nothing is
    targets: tuple[str, ...]  # e.g. "libero:spatial"; empty where they are open-ended, as in gym:<id>
    aliases: Mapping[str, str]  # other spellings of targets
    options: Mapping[str, str]  # what `--set` accepts: name -> one line; "*": any keyword argument


class Catalogue(Struct, frozen=True, kw_only=True):
    """What can be run."""

    families: Mapping[str, Family]
    policies: tuple[str, ...]  # by name; any package.module:factory beside them


class Suites(Struct, frozen=True, kw_only=True):
    """The suites that a target stands for, in order."""

    suites: tuple[SuiteInfo, ...]


def catalogue(family: str | None = None) -> Catalogue:
    """The families (or one of them) and the policies. Raises `UsageError`."""
    names = [family] if family is not None else families()
    return Catalogue(
        families={name: _family(name) for name in names},
        policies=tuple(known_policies()),
    )


def catalogue_json(family: str | None = None) -> bytes:
    """`catalogue` as strict JSON."""
    return pretty_json(catalogue(family))


def suites_json(suites: Iterable[SuiteInfo]) -> bytes:
    """The tasks of suites as strict JSON."""
    return pretty_json(Suites(suites=tuple(suites)))


def print_catalogue(console: Console, family: str | None = None) -> None:
    """The families (or one of them) with their suites, and the policies. Raises `UsageError`."""
    listed = catalogue(family)
    table = Table("family", "installed", "suites", box=None, pad_edge=False)
    for name, found in listed.families.items():
        shown = found.targets if family is not None else found.targets[:SHORT]
        text = " ".join(shown) or f"{name}:<id>"
        if len(shown) < len(found.targets):
            text += f" and {len(found.targets) - len(shown)} more: rollout list {name}"
        table.add_row(name, "yes" if found.install is None else found.install, text)
    console.print(table)
    if family is None:
        forms = map(policy_form, known_policies().values())
        policies = ", ".join([*forms, "package.module:factory"])
        console.print(f"\npolicies  {policies}", highlight=False)
        console.print("tasks     rollout list TARGET, e.g. rollout list metaworld:mt10", highlight=False)


def print_tasks(console: Console, suite: SuiteInfo) -> None:
    """The tasks of a suite."""
    table = Table(title=suite.suite, title_justify="left", box=None, pad_edge=False)
    for heading in ("id", "horizon", "starts"):
        table.add_column(heading, justify="right")
    table.add_column("task", overflow="fold")
    table.add_column("instruction", overflow="fold")
    for task in suite.tasks:
        starts = "seeded" if task.n_init_states is None else str(task.n_init_states)
        table.add_row(
            str(task.task_id),
            str(task.horizon or "none"),
            starts,
            one_line(task.task),
            one_line(task.instruction),
        )
    console.print(table)


def _family(name: str) -> Family:
    adapter = load_simulator(name)
    missing = missing_requirement(adapter)
    return Family(
        installed=missing is None,
        install=None if missing is None else missing.partition("run: ")[2],
        targets=tuple(f"{name}:{suite}" for suite in adapter.names),
        aliases=dict(adapter.aliases),
        options=dict(adapter.options),
    )
