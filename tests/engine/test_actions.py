"""What of a chunk is executed, and what is remembered of it."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from rollout.engine.actions import EpisodeActions
from rollout.engine.execution import Execution
from rollout.spaces import Box, Choice, Fields, Space
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
