"""What a run of the harness leaves: every value of every round, what they amount to, and where it was measured."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, Final, Literal

import msgspec
from msgspec import Struct, field

from benchmarks.workload import Case, Ratio
from rollout.errors import UsageError
from rollout.results.files import pretty_json, write_atomically

__all__ = ["SCHEMA", "CaseRecord", "RatioRecord", "Record", "Side", "Spread", "read_record", "write_record"]

SCHEMA: Final = 1
"""Raised where a reader of older files would misunderstand them."""


class Spread(Struct, frozen=True, kw_only=True):
    """A few measurements of the same."""

    median: float
    lowest: float
    highest: float

    @classmethod
    def of(cls, values: Iterable[float | None]) -> Spread | None:
        """Of those that there are; None where there are none."""
        there = [value for value in values if value is not None]
        if not there:
            return None
        return cls(median=statistics.median(there), lowest=min(there), highest=max(there))


class Side(Struct, kw_only=True):
    """One contender's measurements of one case, by round; None where a round has none."""

    name: str
    values: list[float | None] = field(default_factory=list)
    extras: list[dict[str, Any] | None] = field(default_factory=list)
    spread: Spread | None = None
    note: str | None = None  # why it was not measured: one line


class RatioRecord(Struct, frozen=True, kw_only=True):
    """How many times better one contender is than another: of each round's neighbours, so that a noisy minute weighs
    on both."""

    of: str
    over: str | None  # None: a share of a bound
    values: list[float | None]  # by round
    spread: Spread | None
    target: float | None
    met: bool | None  # None where there is no target, or no value

    @property
    def name(self) -> str:
        """E.g. "rollout / AsyncVectorEnv"."""
        return f"{self.of} / {self.over or 'bound'}"


class CaseRecord(Struct, kw_only=True):
    """One case: its contenders' values and their ratios."""

    workload: str
    case: str
    parameters: dict[str, Any]
    unit: str
    better: Literal["more", "less"]
    sides: list[Side]
    ratios: list[RatioRecord] = field(default_factory=list)

    def side(self, name: str) -> Side:
        """The contender called `name`."""
        return next(side for side in self.sides if side.name == name)

    def summarize(self, case: Case) -> None:
        """Fill in what follows from the values."""
        for side in self.sides:
            side.spread = Spread.of(side.values)
        self.ratios = [self._ratio(ratio) for ratio in case.ratios]

    def _ratio(self, ratio: Ratio) -> RatioRecord:
        ours = self.side(ratio.of).values
        values = ours if ratio.over is None else self._times_better(ours, self.side(ratio.over).values)
        spread = Spread.of(values)
        judged = ratio.target is not None and spread is not None
        return RatioRecord(
            of=ratio.of,
            over=ratio.over,
            values=list(values),
            spread=spread,
            target=ratio.target,
            met=spread.median >= ratio.target if judged else None,  # type: ignore[union-attr, operator]
        )

    def _times_better(
        self, ours: Sequence[float | None], theirs: Sequence[float | None]
    ) -> list[float | None]:
        more = self.better == "more"
        return [
            None if our is None or their is None else (our / their if more else their / our)
            for our, their in zip(ours, theirs, strict=False)  # an interrupted round has one side alone
        ]


class Record(Struct, kw_only=True):
    """All that one run of the harness measured."""

    schema: int = SCHEMA
    complete: bool = False  # False: interrupted
    date: str  # UTC, ISO 8601
    commit: (
        str | None
    )  # of the checkout that was measured, "-dirty" where it had changes; None: not a checkout
    rounds: int
    seconds: float  # of each measurement, about
    quick: bool
    machine: dict[str, Any]
    versions: dict[str, str]
    cases: list[CaseRecord] = field(default_factory=list)


class _Header(Struct):
    schema: int


def read_record(path: Path) -> Record:
    """What `write_record` wrote. Raises `UsageError` where it cannot be read, or has another schema."""
    try:
        data = path.read_bytes()
        schema = msgspec.json.decode(data, type=_Header).schema
        if schema == SCHEMA:
            return msgspec.json.decode(data, type=Record)
    except OSError as exc:
        raise UsageError(f"cannot read {path}: {exc.strerror}") from exc
    except (msgspec.DecodeError, UnicodeDecodeError) as exc:
        raise UsageError(f"{path} is no result of rollout bench: {exc}") from exc
    raise UsageError(
        f"{path} has schema {schema}, and this version reads schema {SCHEMA}: measure it again with this version"
    )


def write_record(path: Path, record: Record) -> None:
    """As strict JSON, atomically. Raises `ResultsError`."""
    write_atomically(path, pretty_json(record))
