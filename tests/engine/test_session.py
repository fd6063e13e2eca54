"""What the engine remembers of an episode, without a process or a loop."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from rollout.engine.execution import Execution
from rollout.engine.session import EpisodeSession, failed
from rollout.errors import PolicyError, ProtocolError
from rollout.sim.protocol import RunDone
from rollout.spaces import Box, Choice, Fields, Space, Text
from rollout.types import EpisodeFailure, EpisodeResult, EpisodeSpec, Outcome, Spent, TaskInfo
from rollout.values import Array, Items, pack, pack_array, unpack, unpack_array

SPEC = EpisodeSpec(suite="toy:x", task="lift", task_id=0, episode=3, seed=1003, horizon=50)
BOX = Box("<f4", (2,), pack_array(np.full(2, -1, "f4")), pack_array(np.full(2, 1, "f4")))
DISCRETE = Choice("<i8", (), pack_array(np.asarray(3)), pack_array(np.asarray(0)))


def session(space: Space = BOX, *, n_obs_steps: int = 1, n_action_steps: int | None = None) -> EpisodeSession:
    task = TaskInfo(
        suite="toy:x",
        task="lift",
        task_id=0,
        instruction="lift it",
        horizon=50,
        fps=10,
        action_space=space,
        observation_space={},
        success_rule=None,
    )
    execution = Execution(n_action_steps=n_action_steps)
    return EpisodeSession(SPEC, task, n_obs_steps=n_obs_steps, execution=execution, session="mine")


def done(
    rewards: list[float],
    *,
    terminated: bool = False,
    truncated: bool = False,
    success: bool | None = None,
    observations: tuple[dict[str, Any], ...] = (),
) -> RunDone:
    return RunDone(np.array(rewards, "<f8").tobytes(), terminated, truncated, success, observations, 0.0, 0.0)


def finish(of: EpisodeSession) -> EpisodeResult:
    return of.result(attempts=1, spent=Spent(), built=False, video=None)


def as_array(chunk: Array | Items) -> np.ndarray:
    assert isinstance(chunk, Array)
    return unpack_array(chunk)


@pytest.mark.parametrize(
    ("space", "returned", "shape"),
    [
        (BOX, np.zeros((5, 2)), (5, 2)),
        (BOX, np.zeros(2), (1, 2)),
        (BOX, [[0.5, 0.5]], (1, 2)),
        (DISCRETE, np.array([1, 2, 0]), (3,)),
        (DISCRETE, np.array([[1], [2]]), (2,)),
        (DISCRETE, 2, (1,)),
        (DISCRETE, [1.0], (1,)),
    ],
)
def test_a_chunk_is_brought_to_the_action_spaces_shape_and_dtype(
    space: Any, returned: Any, shape: Any
) -> None:
    chunk = as_array(session(space).chunk(returned))
    assert chunk.shape == shape
    assert chunk.dtype == np.dtype(space.dtype)


@pytest.mark.parametrize(
    ("space", "returned"),
    [
        (BOX, np.zeros((5, 3))),
        (BOX, np.zeros((0, 2))),
        (BOX, np.array([[np.nan, 0]])),
        (BOX, np.array([[0, np.inf]])),
        (BOX, None),
        (BOX, "x"),
        (DISCRETE, [0.5]),
        (DISCRETE, np.zeros((2, 2))),
    ],
)
def test_what_is_no_chunk_is_blamed_on_the_policy_with_the_episode_named(space: Any, returned: Any) -> None:
    with pytest.raises(PolicyError, match=r"toy:x lift episode 3, step 0"):
        session(space).chunk(returned)


def test_only_n_action_steps_of_a_chunk_are_executed() -> None:
    assert len(as_array(session(n_action_steps=3).chunk(np.zeros((8, 2))))) == 3
    assert len(as_array(session(n_action_steps=None).chunk(np.zeros((8, 2))))) == 8


def test_a_buffer_that_the_policy_reuses_does_not_change_the_record() -> None:
    episode, buffer = session(), np.full((1, 2), 0.25, "f4")
    episode.chunk(buffer)
    buffer[:] = 9.0
    episode.executed(done([0.0], terminated=True))
    actions = episode.actions
    assert isinstance(actions, Array)
    assert unpack_array(actions).tolist() == [[0.25, 0.25]]


def test_the_record_holds_executed_actions_only() -> None:
    episode = session()
    episode.chunk(np.arange(16).reshape(8, 2))
    episode.executed(done([1.0, 2.0, 3.0], terminated=True, success=True))
    result = finish(episode)
    assert (result.steps, result.sum_reward, result.max_reward) == (3, 6.0, 3.0)
    assert result.outcome is Outcome.SUCCESS
    actions = episode.actions
    assert isinstance(actions, Array)
    assert actions.shape == (3, 2)


def test_the_digest_is_the_same_however_the_episode_was_cut_into_chunks() -> None:
    whole, pieces = session(), session()
    actions = np.arange(8, dtype="f4").reshape(4, 2)
    whole.chunk(actions)
    whole.executed(done([1.0, 2.0, 3.0, 4.0], truncated=True, success=False))
    for index in range(4):
        pieces.chunk(actions[index : index + 1])
        pieces.executed(done([index + 1.0], truncated=index == 3, success=False, observations=({},)))
    assert finish(whole).digest == finish(pieces).digest


@pytest.mark.parametrize("change", ["action", "reward", "success", "ending"])
def test_the_digest_tells_every_difference(change: str) -> None:
    def digest(changed: str) -> str | None:
        episode = session()
        episode.chunk(np.full((1, 2), 0.5 if changed == "action" else 0.0))
        episode.executed(
            done(
                [1e-12 if changed == "reward" else 0.0],
                terminated=changed != "ending",
                truncated=changed == "ending",
                success=changed == "success",
            )
        )
        return finish(episode).digest

    assert digest(change) != digest("nothing")
    assert digest("nothing") == digest("nothing")


@pytest.mark.parametrize(
    ("success", "outcome"), [(True, Outcome.SUCCESS), (False, Outcome.FAILURE), (None, Outcome.UNKNOWN)]
)
def test_the_outcome_follows_the_success_signal_alone(success: bool | None, outcome: Outcome) -> None:
    episode = session()
    episode.chunk(np.zeros((1, 2)))
    episode.executed(done([0.0], terminated=True, success=success))
    assert finish(episode).outcome is outcome


def test_a_reward_that_is_not_finite_is_null_and_flagged() -> None:
    episode = session()
    episode.chunk(np.zeros((2, 2)))
    episode.executed(done([1.0, float("nan")], terminated=True))
    result = finish(episode)
    assert (result.sum_reward, result.max_reward, result.nonfinite_reward) == (None, None, True)


def test_a_request_carries_the_instruction_unless_the_observation_has_its_own() -> None:
    episode = session()
    episode.observe(({"observation.state": pack(np.zeros(1))},))
    assert episode.request().observation["task"] == "lift it"
    episode.observe(({"task": "drop it"},))
    request = episode.request()
    assert request.observation["task"] == "drop it"
    assert (request.decision, request.step, request.session) == (1, 0, "mine")


def test_history_is_stacked_and_starts_with_copies_of_the_first_observation() -> None:
    episode = session(n_obs_steps=3)

    def see(*values: int) -> list[float]:
        episode.observe(tuple({"observation.state": pack(np.array([float(value)]))} for value in values))
        stacked: list[float] = episode.request().observation["observation.state"][:, 0].tolist()
        return stacked

    assert see(0) == [0.0, 0.0, 0.0]
    assert see(1) == [0.0, 0.0, 1.0]
    assert see(2, 3) == [1.0, 2.0, 3.0]
    assert episode.request().observation["task"] == "lift it"


def test_nested_actions_are_sent_and_recorded_as_they_are() -> None:
    space = Fields((BOX, Text(0, 5, "ab")), ("move", "say"))
    episode = session(space)
    action = {"move": np.zeros(2, "f4"), "say": "ab"}
    sent = episode.chunk([action, action])
    assert isinstance(sent, Items)
    assert unpack(sent.items[1])["say"] == "ab"
    episode.executed(done([0.0], terminated=True))
    recorded = unpack(episode.actions)
    assert len(recorded) == 1
    assert recorded[0]["say"] == "ab"


def test_an_error_is_never_a_failure_and_has_no_numbers() -> None:
    result = failed(SPEC, EpisodeFailure(type="X", message="m"), attempts=3)
    assert result.outcome is Outcome.ERROR
    assert (result.success, result.sum_reward, result.digest, result.attempts) == (None, None, None, 3)


def test_noise_seeds_differ_by_decision_and_episode_and_by_nothing_else() -> None:
    from msgspec.structs import replace

    from rollout.policies.base import noise_seed

    seeds = {
        noise_seed(replace(SPEC, **change), decision)
        for decision in range(3)
        for change in ({}, {"episode": 4}, {"task": "push"}, {"suite": "toy:y"}, {"seed": 5})
    }
    assert len(seeds) == 15
    assert noise_seed(SPEC, 0) == noise_seed(replace(SPEC, horizon=7, init_state=3), 0)
    assert 0 <= min(seeds) <= max(seeds) < 2**63


@pytest.mark.parametrize(
    "answer",
    [
        done([]),  # it would be asked for ever
        done([0.0, 0.0], truncated=True),  # more than it was given
        done([0.0]),  # nothing to decide from
        RunDone(b"1234567", True, False, None, (), 0.0, 0.0),
    ],
    ids=["no step", "too many steps", "no observation", "a part of a reward"],
)
def test_an_answer_that_a_chunk_cannot_have_had_is_a_broken_protocol(answer: RunDone) -> None:
    episode = session()
    episode.chunk(np.zeros((1, 2), "f4"))
    with pytest.raises(ProtocolError, match="after 1 actions"):
        episode.executed(answer)
