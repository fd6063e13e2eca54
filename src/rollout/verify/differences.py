"""Where one episode first differs between two runs of it, and what that tells."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from enum import StrEnum
from typing import Any, Final

import msgspec
import numpy as np
from msgspec import Struct

from rollout.types import EpisodeResult
from rollout.values import Value, pack, unpack
from rollout.verify.witness import Seen

__all__ = ["Cause", "Difference", "Lived", "difference"]

ROUNDING: Final[Mapping[str, float]] = {"fp32": 1e-5, "fp16": 1e-2, "bf16": 5e-2}
"""Up to here, relative to the action's size where that is above 1, rounding in this number format explains it."""

AMPLIFIED = 100.0  # times more than that, and only a policy that amplifies its rounding could still be meant

_encode = msgspec.msgpack.Encoder().encode


class Cause(StrEnum):
    """Who is likely to break the promise."""

    ROUNDING = "rounding"  # of the policy's numbers, with the shape of the batch
    UNCLEAR = "unclear"  # rounding that was amplified, or state
    STATE = "state"  # of the policy: shared between episodes, or a global generator's
    SIMULATOR = "simulator"


class Lived(Struct, frozen=True, kw_only=True):
    """One run of an episode: its record, what was executed, and what the policy was shown."""

    result: EpisodeResult
    actions: Value
    seen: Sequence[Seen]


class Difference(Struct, frozen=True, kw_only=True):
    """One episode that was not the same; pairs are (alone, together)."""

    suite: str
    task: str
    task_id: int
    episode: int
    seed: int
    cause: Cause
    what: str  # the first difference, in words
    step: int | None = (
        None  # steps executed before it; None where rewards or the ending differ: no step is on record
    )
    decision: int | None = None
    size: float | None = None  # the largest one in that action; None where it has no numbers, or none differs
    dimension: int | None = None  # where in the (flattened) action that is
    observation_key: str | None = None  # what the simulator showed otherwise
    steps: tuple[int, int]
    sum_reward: tuple[float | None, float | None]
    outcome: tuple[str, str]
    digest: tuple[str | None, str | None]


def difference(alone: Lived, together: Lived, dtype: str) -> Difference | None:
    """How the two runs differ; None where their digests are equal. `dtype` is the policy's number format."""
    one, other = alone.result, together.result
    if one.digest == other.digest:
        return None
    return Difference(
        suite=one.suite,
        task=one.task,
        task_id=one.task_id,
        episode=one.episode,
        seed=one.seed,
        steps=(one.steps, other.steps),
        sum_reward=(one.sum_reward, other.sum_reward),
        outcome=(one.outcome, other.outcome),
        digest=(one.digest, other.digest),
        **_first(alone, together, dtype),
    )


def _first(alone: Lived, together: Lived, dtype: str) -> dict[str, Any]:
    pairs = list(zip(unpack(alone.actions), unpack(together.actions), strict=False))
    step = next((at for at, (one, other) in enumerate(pairs) if not _same(one, other)), None)
    shown = _first_sight(alone.seen, together.seen, len(pairs) if step is None else step)
    if shown is not None:
        return shown
    if step is None:
        return {"cause": Cause.SIMULATOR, "what": _aftermath(alone.result, together.result)}
    decision = sum(seen.step <= step for seen in alone.seen) - 1
    return {"step": step, "decision": decision, **_of_actions(*pairs[step], step, decision, dtype)}


def _first_sight(alone: Sequence[Seen], together: Sequence[Seen], until: int) -> dict[str, Any] | None:
    """The first part of an observation that differs although no action did before."""
    for decision, (one, other) in enumerate(zip(alone, together, strict=False)):
        if one.step != other.step or one.step > until:
            return None
        # Which keys there are may differ: at its very first decision a policy is shown everything, see `Watched`.
        for key in sorted(one.digests.keys() & other.digests.keys()):
            if one.digests[key] != other.digests[key]:
                before = f"after the same {one.step} actions" if one.step else "at its start"
                what = f"{key} differs {before} (decision {decision})"
                place = {"step": one.step, "decision": decision, "observation_key": key}
                return {"cause": Cause.SIMULATOR, "what": what, **place}
    return None


def _of_actions(one: Any, other: Any, step: int, decision: int, dtype: str) -> dict[str, Any]:
    what = f"what the policy saw is the same, its action differs from step {step} on (decision {decision})"
    (values, whole), (others, _) = _numbers(one), _numbers(other)
    if values.shape != others.shape or not len(values):
        return {"cause": Cause.UNCLEAR, "what": what}
    sizes = np.abs(values - others)
    dimension = int(sizes.argmax())
    relative = sizes[dimension] / max(1.0, abs(values[dimension]))
    return {
        "cause": _cause(relative, ROUNDING[dtype], bool(whole[dimension])),
        "what": f"{what}, there by {sizes[dimension]:.1e} in dimension {dimension}",
        "size": float(sizes[dimension]),
        "dimension": dimension,
    }


def _cause(size: float, limit: float, whole: bool) -> Cause:
    if whole or limit < size <= AMPLIFIED * limit:  # whole numbers hide how near they were to another one
        return Cause.UNCLEAR
    return Cause.ROUNDING if size <= limit else Cause.STATE


def _aftermath(one: EpisodeResult, other: EpisodeResult) -> str:
    """What differs where no action does: rewards are on record as their sum only."""
    if one.steps != other.steps:
        same = min(one.steps, other.steps)
        return (
            f"the same {same} actions, but {one.steps} steps with one worker and {other.steps} with several"
        )
    same = one.steps
    if None not in (one.sum_reward, other.sum_reward) and one.sum_reward != other.sum_reward:
        apart = abs((one.sum_reward or 0.0) - (other.sum_reward or 0.0))
        return f"the same {same} actions, but rewards that are {apart:.1e} apart in all"
    if one.outcome != other.outcome:
        return f"the same {same} actions, but {one.outcome} with one worker and {other.outcome} with several"
    return f"the same {same} actions, but other rewards or another ending"


def _same(one: Any, other: Any) -> bool:
    return bool(_encode(pack(one)) == _encode(pack(other)))


def _numbers(action: Any) -> tuple[np.ndarray, np.ndarray]:
    """All numbers in an action, float64 (n,), and which of them are whole ones; text has none."""
    leaves = [np.asarray(leaf).ravel() for leaf in _leaves(action)]
    kinds = [np.full(len(leaf), leaf.dtype.kind in "biu") for leaf in leaves]
    return np.concatenate([np.zeros(0), *leaves]), np.concatenate([np.zeros(0, bool), *kinds])


def _leaves(action: Any) -> Iterator[Any]:
    if isinstance(action, dict):
        action = tuple(action.values())
    if isinstance(action, tuple | list):
        for item in action:
            yield from _leaves(item)
    elif action is not None and not isinstance(action, str):
        yield action
