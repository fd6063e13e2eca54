"""Whose word counts on how chunks are executed, and what a user is told of it."""

from __future__ import annotations

from typing import Any

import pytest

from rollout.config import EvalConfig
from rollout.engine.execution import Execution, advice, execution
from rollout.errors import UsageError
from rollout.policies.base import PolicySpec


def config(**settings: Any) -> EvalConfig:
    return EvalConfig.create(targets=("gym:x",), **settings)


@pytest.mark.parametrize(
    ("settings", "spec", "expected"),
    [
        ({}, {}, (1, None)),
        ({}, {"n_action_steps": None}, (None, None)),
        ({}, {"n_action_steps": 5}, (5, None)),
        ({"n_action_steps": 3}, {"n_action_steps": 5}, (3, None)),
        ({"temporal_ensemble": 0.01}, {"n_action_steps": 5}, (1, 0.01)),
        ({"temporal_ensemble": 0.02}, {"temporal_ensemble": 0.01}, (1, 0.02)),
        ({}, {"temporal_ensemble": 0.01, "n_action_steps": None}, (1, 0.01)),
        ({"n_action_steps": 1}, {"temporal_ensemble": 0.01}, (1, 0.01)),
        ({"n_action_steps": 4}, {"temporal_ensemble": 0.01}, (4, None)),
        ({"temporal_ensemble": 0.0}, {}, (1, 0.0)),
    ],
)
def test_the_run_decides_and_otherwise_the_policy(
    settings: dict[str, Any], spec: dict[str, Any], expected: tuple[int | None, float | None]
) -> None:
    steps, decay = expected
    assert execution(config(**settings), PolicySpec(**spec)) == Execution(
        n_action_steps=steps, temporal_ensemble=decay
    )


def test_clipping_is_asked_for() -> None:
    assert not execution(config(), PolicySpec()).clip
    assert execution(config(clip_actions=True), PolicySpec()).clip


@pytest.mark.parametrize(
    ("settings", "spec", "told"),
    [
        ({}, {"chunk_size": 50, "n_action_steps": 50}, "--n-action-steps 10"),
        ({}, {"chunk_size": 100, "n_action_steps": None}, "all 100 actions"),
        ({"n_action_steps": 50}, {"chunk_size": 50, "n_action_steps": 10}, "all 50 actions"),
        ({"n_action_steps": 10}, {"chunk_size": 50, "n_action_steps": 50}, None),
        ({"temporal_ensemble": 0.01}, {"chunk_size": 50, "n_action_steps": 50}, None),
        ({}, {"chunk_size": 8, "n_action_steps": 8}, None),
        ({"n_action_steps": 20}, {"chunk_size": 8}, "8 are executed"),
        ({"n_action_steps": 5}, {"chunk_size": 1}, None),  # it did not say how long its chunks are
        ({"n_action_steps": 5}, {"chunk_size": 9, "temporal_ensemble": 0.01}, "turns off"),
    ],
)
def test_a_user_is_told_what_is_known_to_cost_success(
    settings: dict[str, Any], spec: dict[str, Any], told: str | None
) -> None:
    lines = advice(config(**settings), PolicySpec(**spec))
    assert len(lines) == (told is not None)
    assert told is None or told in lines[0]


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_a_decay_is_a_number(value: float) -> None:
    with pytest.raises(UsageError, match="--temporal-ensemble"):
        config(temporal_ensemble=value)


def test_ensembling_and_several_steps_a_decision_are_refused_together() -> None:
    with pytest.raises(UsageError, match="does not go with --n-action-steps 5"):
        config(temporal_ensemble=0.01, n_action_steps=5)


def test_ensembling_wins_over_a_protocols_own_number_of_steps() -> None:
    assert config(protocol="openpi").n_action_steps == 5
    assert config(protocol="openpi", temporal_ensemble=0.01).n_action_steps is None
    assert config(protocol="openpi").replaced(temporal_ensemble=0.01).n_action_steps is None
    with pytest.raises(UsageError, match="does not go with --n-action-steps 3"):
        config(protocol="openpi", n_action_steps=3).replaced(temporal_ensemble=0.01)
