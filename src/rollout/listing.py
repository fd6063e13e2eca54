"""`rollout list`: what can be run."""

from __future__ import annotations

from rich.console import Console
from rich.table import Table

from rollout.config import nearest
from rollout.envs.registry import families, load_simulator, missing_requirement
from rollout.errors import UsageError
from rollout.policies.load import known_policies
from rollout.types import SuiteInfo

__all__ = ["print_catalogue", "print_tasks"]

SHORT = 13  # suites of a family in the overview: Meta-World's groups, behind which its 50 single tasks follow


def print_catalogue(console: Console, family: str | None = None) -> None:
    """The families (or one of them) with their suites, and the policies. Raises `UsageError`."""
    known = families()
    if family is not None and family not in known:
        raise UsageError(
            f"unknown simulator family {family!r}{nearest(family, known)} (known: {', '.join(known)})"
        )
    table = Table("family", "installed", "suites", box=None, pad_edge=False)
    for name in known if family is None else [family]:
        adapter = load_simulator(name)
        missing = missing_requirement(adapter)
        shown = adapter.names if family is not None else adapter.names[:SHORT]
        targets = " ".join(f"{name}:{suite}" for suite in shown) or f"{name}:<id>"
        if len(shown) < len(adapter.names):
            targets += f" and {len(adapter.names) - len(shown)} more: rollout list {name}"
        table.add_row(name, "yes" if missing is None else missing.partition("run: ")[2], targets)
    console.print(table)
    if family is None:
        policies = ", ".join([*known_policies(), "package.module:factory"])
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
        table.add_row(str(task.task_id), str(task.horizon or "none"), starts, task.task, task.instruction)
    console.print(table)
