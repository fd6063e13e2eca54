"""What `verify` found, for people."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Mapping
from typing import Final

from rich.console import Console
from rich.text import Text

from rollout.display.text import duration, one_line, plural
from rollout.verify.differences import Cause
from rollout.verify.verdict import Setting, Verdict

__all__ = ["print_verdict"]

SHOWN = 5  # episodes told one by one
MARGIN = 11
COLOUR: Final[Mapping[str, str]] = {"equal": "green", "weak": "yellow", "different": "red", "error": "red"}

LIKELY: Final[Mapping[Cause, str]] = {
    Cause.ROUNDING: (
        "rounding that changes with the shape of the batch: --deterministic gives every forward of a module the "
        "same shape; an infer of your own must do so itself"
    ),
    Cause.STATE: (
        "too much for rounding: state that episodes share, which belongs into the session, or noise from a global "
        "generator, which must come from Request.noise_seed"
    ),
    Cause.UNCLEAR: (
        "the size does not tell: rounding that the policy amplifies (try --deterministic), or state that episodes "
        "share"
    ),
    Cause.SIMULATOR: (
        "the simulator: its reset leaves something of earlier episodes behind, or it draws from a generator that "
        "is not seeded"
    ),
}
STILL_ROUNDING = (
    "rounding that changes with the batch although --deterministic is on: an infer of the policy's own that batches "
    "itself, or kernels that are not reproducible"
)


def print_verdict(verdict: Verdict, console: Console) -> None:
    """The verdict, how it was come by, and for every difference the first step and its size; then likely causes."""
    for label, line in _lines(verdict):
        wrapped = textwrap.wrap(line, max(console.width - MARGIN, 40), break_on_hyphens=False)
        text = Text.assemble((label.ljust(MARGIN), COLOUR.get(label, "bold")))
        console.print(text + Text(f"\n{' ' * MARGIN}".join(wrapped)), soft_wrap=True, highlight=False)


def _lines(verdict: Verdict) -> Iterator[tuple[str, str]]:
    for found in verdict.differences[:SHOWN]:
        yield "different", f"{found.task} episode {found.episode}: {found.what}"
    if len(verdict.differences) > SHOWN:
        yield "", f"and {plural(len(verdict.differences) - SHOWN, 'episode')} more"
    for lost in verdict.unmeasured[:SHOWN]:
        where = _setting(getattr(verdict, lost.setting))
        yield "error", f"{lost.task} episode {lost.episode} with {where}: {one_line(lost.error)}"
    if len(verdict.unmeasured) > SHOWN:
        yield "", f"and {plural(len(verdict.unmeasured) - SHOWN, 'error')} more"
    for cause in dict.fromkeys(found.cause for found in verdict.differences):
        still = cause is Cause.ROUNDING and verdict.deterministic is True
        yield "likely", STILL_ROUNDING if still else LIKELY[cause]
    yield from _conclusion(verdict)


def _conclusion(verdict: Verdict) -> Iterator[tuple[str, str]]:
    every = f"{plural(verdict.episodes, 'episode')} of {plural(verdict.tasks, 'task')}"
    if verdict.equal:
        yield "equal", f"{every}: the same actions, rewards and endings, bit for bit"
    elif verdict.differences:
        yield "different", f"{len(verdict.differences)} of {every} are not the same"
    else:
        yield "error", f"{every}: what could be compared is the same, but not all of them could be measured"
    for setting in (verdict.alone, verdict.together):
        yield "", f"{_setting(setting)}: {_batch(setting)}{duration(setting.wall_s)}"
    if verdict.equal and verdict.weak:
        yield "weak", _weakness(verdict)


def _setting(setting: Setting) -> str:
    limit = "batches of 1" if setting.max_batch == 1 else f"batches of up to {setting.max_batch}"
    return f"{plural(setting.workers, 'worker')}, {limit}"


def _batch(setting: Setting) -> str:
    return (
        ""
        if setting.mean_batch is None or setting.max_batch == 1
        else f"{setting.mean_batch:.1f} on average, "
    )


def _weakness(verdict: Verdict) -> str:
    if verdict.together.max_batch == 1:
        return "this says nothing about batches: give a larger --max-batch"
    return (
        "this says little about batches: few decisions shared one. More --workers, --episodes or --max-wait-ms make "
        "them larger; a policy that decides one at a time has none"
    )
