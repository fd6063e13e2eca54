"""What of a chunk is executed, and what is remembered of it."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from rollout.engine.actions import EpisodeActions
from rollout.engine.execution import Execution
from rollout.spaces import Box, Choice, Fields, OneOf, Repeated, Space, Text
from rollout.values import Array, Items, pack_array, unpack_array

BOX = Box("<f4", (2,), pack_array(np.array([-1, 0], "f4")), pack_array(np.array([1, np.inf], "f4")))
DISCRETE = Choice("<i8", (), pack_array(np.asarray(3)), pack_array(np.asarray(0)))


def actions(space: Space = BOX, **execution: Any) -> EpisodeActions:
    return EpisodeActions(space, Execution(**execution))


def as_array(value: Any) -> np.ndarray:
    assert isinstance(value, Array)
    return unpack_array(value)


def test_clipped_actions_are_executed_kept_and_counted() -> None:
    kept = actions(clip=True)
    sent = as_array(kept.take([[0.5, 2.0], [3.0, -1.0], [-1.0, 0.0], [-2.0, 5.0]]))
    assert sent.tolist() == [[0.5, 2.0], [1.0, 0.0], [-1.0, 0.0], [-1.0, 5.0]]
    kept.executed(3)  # the episode ended before the last one
    assert kept.clipped == 1
    assert as_array(kept.value).tolist() == sent[:3].tolist()


BYTES = Box("|u1", (1,), pack_array(np.zeros(1, "u1")), pack_array(np.full(1, 200, "u1")))


def test_whole_numbers_are_clipped_before_they_could_wrap_around() -> None:
    kept = actions(BYTES, clip=True)
    assert as_array(kept.take([[300.0], [256.0], [-1.0], [7.0]])).ravel().tolist() == [200, 200, 0, 7]
    kept.executed(4)
    assert kept.clipped == 3


@pytest.mark.parametrize(
    ("space", "returned", "says"),
    [
        (BOX, np.full((1, 2), 1e300), "not finite"),  # infinity in float32
        (BOX, [[None, 0.0]], "no numbers"),
        (BOX, np.array([[np.nan, 0.0]], object), "no numbers"),
        (BOX, np.ones((1, 2), complex), "no numbers"),
        (BOX, [["left", "right"]], "no numbers"),
        (BYTES, [[300]], "do not fit into uint8"),
        (BYTES, [[-1]], "do not fit into uint8"),
        (DISCRETE, [1e20], "do not fit into int64"),
        (DISCRETE, [np.nan], "not whole numbers"),
    ],
)
def test_what_a_cast_would_turn_into_something_else_is_refused(space: Any, returned: Any, says: str) -> None:
    for clip in (False, True):
        if clip and (space is BYTES or says == "not finite"):
            continue  # clipped, they are actions
        with pytest.raises(ValueError, match=says):
            actions(space, clip=clip).take(returned)


NESTED = Fields(
    spaces=(BOX, DISCRETE, Text(0, 9, "abc"), Repeated(DISCRETE, False)), names=("a", "b", "c", "d")
)
SOUND = {"a": [0.0, 1.0], "b": 1, "c": "ab", "d": (1, 2)}


@pytest.mark.parametrize(
    ("part", "says"),
    [
        ({"a": [0.0, np.nan]}, "not finite"),
        ({"a": [0.0]}, r"shape \(1,\) instead of \(2,\)"),
        ({"b": 1.5}, "not whole numbers"),
        ({"b": "up"}, "no numbers"),
        ({"c": 3}, "3 as a part of an action that is a text"),
        ({"d": 3}, "Repeated"),
        ({"e": 3}, "dict of a, b, c, d"),
    ],
)
def test_nested_actions_are_looked_through_before_a_simulator_sees_them(
    part: dict[str, Any], says: str
) -> None:
    actions(NESTED).take([SOUND])
    with pytest.raises(ValueError, match=says):
        actions(NESTED).take([SOUND, {**SOUND, **part}])


@pytest.mark.parametrize(
    ("space", "sound", "broken"),
    [
        (Fields(spaces=(DISCRETE, BOX)), (1, [0.0, 0.0]), (1,)),
        (OneOf(spaces=(DISCRETE, BOX)), (1, [0.0, 0.0]), (2, [0.0, 0.0])),
        (OneOf(spaces=(DISCRETE, BOX)), (0, 2), (1, 2)),
    ],
)
def test_tuples_have_their_parts(space: Any, sound: Any, broken: Any) -> None:
    actions(space).take([sound])
    with pytest.raises(ValueError, match="part of an action"):
        actions(space).take([broken])


def test_nested_actions_cannot_be_clipped() -> None:
    with pytest.raises(ValueError, match="cannot clip"):
        actions(NESTED, clip=True).take([SOUND])


def test_without_being_asked_nothing_is_clipped() -> None:
    kept = actions()
    assert as_array(kept.take([[3.0, -1.0]])).tolist() == [[3.0, -1.0]]
    kept.executed(1)
    assert kept.clipped == 0


def test_a_space_without_bounds_in_between_is_left_alone() -> None:
    kept = actions(DISCRETE, clip=True)
    assert as_array(kept.take([7])).tolist() == [7]


def test_ensembling_executes_one_mean_action_a_decision() -> None:
    kept = actions(temporal_ensemble=0.0, n_action_steps=1)
    assert as_array(kept.take([[0.0, 0.0], [0.0, 0.0]])).tolist() == [[0.0, 0.0]]
    kept.executed(1)
    assert as_array(kept.take([[1.0, 2.0], [9.0, 9.0]])).tolist() == [[0.5, 1.0]]


@pytest.mark.parametrize("space", [DISCRETE, Fields(spaces=(DISCRETE, BOX))])
def test_ensembling_what_has_no_mean_is_refused(space: Any) -> None:
    with pytest.raises(ValueError, match="no mean"):
        actions(space, temporal_ensemble=0.01, n_action_steps=1).take(np.array([1, 2]))


def test_nested_actions_are_kept_as_they_were_executed() -> None:
    kept = actions(Fields(spaces=(DISCRETE, BOX)), n_action_steps=2)
    assert len(kept.take([(1, [0.0, 0.0]), (2, [0.0, 0.0]), (0, [0.0, 0.0])]).items) == 2  # type: ignore[union-attr]
    kept.executed(1)
    assert isinstance(kept.value, Items)
    assert len(kept.value.items) == 1
