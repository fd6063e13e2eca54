"""What `tune` found, for people."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Mapping
from itertools import zip_longest
from typing import Final

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from rollout.display.text import count, duration, plural
from rollout.tune.tuning import WITHIN_S, Tuning

__all__ = ["print_tuning"]

MARGIN = 11
NOISE = 0.1  # of the cores
BINDS: Final[Mapping[str, str]] = {
    "simulators": "the simulators: the policy waits for them. More cores or more machines help, a quicker policy does "
    "not",
    "policy": "the policy: the simulators wait for it. A quicker one, or a quicker device, helps; more simulators do "
    "not",
    "memory": "memory: more workers would be quicker, and do not fit",
    "start-up": "building the simulators, which takes longer than the episodes: more of them a task cost little",
}


def print_tuning(tuning: Tuning, console: Console) -> None:
    """The curves, what they mean, and as the last line the command, in one piece for pasting."""
    console.print(_curves(tuning))
    for label, line in _lines(tuning):
        wrapped = textwrap.wrap(line, max(console.width - MARGIN, 40), break_on_hyphens=False)
        text = Text(f"\n{' ' * MARGIN}".join(wrapped))
        console.print(Text(label.ljust(MARGIN), "bold") + text, soft_wrap=True, highlight=False)
    console.print(Text(f"\n{tuning.command}"), soft_wrap=True, highlight=False)


def _curves(tuning: Tuning) -> Table:
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for heading in ("simulators", "ask for", "batch of", "takes", "the policy gives"):
        table.add_column(heading, justify="right", no_wrap=True)
    for asked, given in zip_longest(tuning.demand, tuning.supply):
        demand = ("", "") if asked is None else (str(asked.simulators), f"{count(asked.decisions_per_s)}/s")
        supply = (
            ("", "", "")
            if given is None
            else (str(given.batch), _brief(given.forward_s), f"{count(given.decisions_per_s)}/s")
        )
        table.add_row(*demand, *supply)
    return table


def _lines(tuning: Tuning) -> Iterator[tuple[str, str]]:
    yield "costs", _costs(tuning)
    yield "episodes", _episodes(tuning)
    yield (
        "memory",
        f"{tuning.worker_bytes / 1e6:,.0f} MB a worker; {plural(tuning.workers_fitting, 'worker')} would fit",
    )
    yield "binds", BINDS[tuning.bound]
    render = f"; renders with {tuning.render}" if tuning.render else ""
    yield (
        "run with",
        f"{plural(tuning.workers, 'worker')}, batches of up to {tuning.max_batch}, {tuning.dtype}{render}",
    )
    if tuning.quicker_dtype is not None:
        yield (
            "",
            f"--dtype {tuning.quicker_dtype} would be quicker, and gives other results: compare them first",
        )
    yield (
        "expect",
        f"{duration(tuning.wall_s)} for {plural(tuning.episodes, 'episode')} of {plural(tuning.tasks, 'task')}, "
        f"{duration(tuning.start_s)} of it starting up; {count(tuning.decisions_per_s)} decisions/s, "
        f"{tuning.mean_batch:.1f} a batch",
    )
    yield "shards", _shards(tuning)
    if tuning.elsewhere > NOISE * tuning.cores:
        yield (
            "caution",
            f"other programs kept {tuning.elsewhere:.1f} of {plural(tuning.cores, 'core')} busy meanwhile: "
            "without them a run is quicker than this",
        )


def _costs(tuning: Tuning) -> str:
    turn = f"a decision {_brief(tuning.physics_s)}"
    if tuning.render_s is not None and tuning.render_s > 0.01 * tuning.physics_s:
        turn += f" of physics and {_brief(tuning.render_s)} of rendering"
    return (
        f"build {_brief(tuning.build_s)}, reset {_brief(tuning.reset_s)}, {turn} "
        f"({plural(round(tuning.steps_per_decision), 'step')}), each alone on a free machine"
    )


def _episodes(tuning: Tuning) -> str:
    steps = f"{tuning.steps:.0f} steps on average"
    if not tuning.ended:
        return f"{steps}: none of {plural(tuning.pieces, 'piece')} ended early, so all are taken to last to the horizon"
    return f"{steps}, as expected from {tuning.ended} of {plural(tuning.pieces, 'piece')} that ended early"


def _shards(tuning: Tuning) -> str:
    limit = f"under {duration(WITHIN_S)}"
    if tuning.shards is None:
        return f"no number of machines like this one brings it {limit}"
    if tuning.shards == 1:
        return f"none needed: this machine brings it {limit}"
    return f"{tuning.shards} machines like this one bring it {limit}: --shard 1/{tuning.shards} on the first, and so on"


def _brief(seconds: float) -> str:
    """`0.21 ms`, `35 ms`, `4.8 s`, `3 min 20 s`."""
    if seconds >= 60:
        return duration(seconds)
    return f"{seconds:.3g} s" if seconds >= 1 else f"{1e3 * seconds:.3g} ms"
