"""The aim of it all: bit for bit the trajectories and the frames of plain loops on the simulators themselves."""

from __future__ import annotations

from functools import cache
from typing import Any

import msgspec
import pytest

from both import decided_on, differences, engine, reference
from libero_loop import CHUNK, Case

# One of each family in every run, with a history of observations; a soft reset would place LIBERO's fixtures elsewhere.
LIBERO = [Case(suite="10", task_id=3, n_steps=40, n_obs_steps=2)]
METAWORLD = [Case(suite="door-open-v3", task_id=0, n_steps=50, n_obs_steps=3)]
LIBERO_SOAK = [
    Case(suite="spatial", task_id=0, size=256),
    Case(suite="spatial", task_id=4),  # LIBERO moves its fixtures with the number of resets
    Case(suite="object", task_id=0),  # a soft reset drifts here
    Case(suite="object", task_id=5, n_obs_steps=2),
    Case(suite="goal", task_id=0),
    Case(suite="goal", task_id=4, seeds=(1000, 7)),
    Case(suite="10", task_id=3),
    Case(suite="10", task_id=7),
]
METAWORLD_SOAK = [
    Case(suite="push-v3", task_id=0),
    Case(suite="pick-place-v3", task_id=0),
    Case(suite="door-open-v3", task_id=0, n_obs_steps=3),
    Case(suite="hammer-v3", task_id=0),
    Case(suite="drawer-close-v3", task_id=0),
    Case(suite="assembly-v3", task_id=0, size=240),
]


def parameters(family: str, cases: list[Case], *marks: pytest.MarkDecorator) -> list[Any]:
    marks = (getattr(pytest.mark, family), *marks)
    return [
        pytest.param(family, case, id=f"{family}-{case.suite}-{case.task_id}-{case.n_steps}", marks=marks)
        for case in cases
    ]


CASES = [
    *parameters("libero", LIBERO),
    *parameters("metaworld", METAWORLD),
    *parameters("libero", LIBERO_SOAK, pytest.mark.soak),
    *parameters("metaworld", METAWORLD_SOAK, pytest.mark.soak),
]
Sides = tuple[list[dict[str, Any]], list[dict[str, Any]]]


@cache
def both_sides(family: str, case: Case) -> Sides:
    theirs = reference(family, case)
    return theirs, engine(family, case, theirs)


@pytest.mark.gl
@pytest.mark.parametrize(("family", "case"), CASES)
def test_trajectories_and_frames_are_those_of_a_plain_loop_that_renders_every_step(
    family: str, case: Case
) -> None:
    theirs, ours = both_sides(family, case)
    assert differences(family, case, theirs, ours) == []
    for number, episode in enumerate(ours):
        n_steps = len(theirs[number]["actions"])
        seen = {int(step) for step in episode["frames"]}
        assert seen == decided_on(case, n_steps)
        # Success comes unannounced: where it comes at a chunk's end, those last frames were made for nobody.
        of_last_chunk = (n_steps - 1) % CHUNK + 1
        surprised = max(0, of_last_chunk - CHUNK + case.n_obs_steps) if n_steps < case.n_steps else 0
        assert episode["rendered"] == len(episode["frames"]["0"]) * (len(seen) + surprised)
    digests = {episode["digest"] for episode in theirs}
    assert len(digests) == len(theirs)  # different seeds, different episodes
    if family == "libero":
        assert min(episode["moved"] for episode in theirs) > 0.005  # something was pushed


@pytest.mark.libero
@pytest.mark.gl
def test_the_hard_reset_that_stays_as_an_oracle_gives_the_same_bits() -> None:
    [case] = LIBERO
    theirs, fast = both_sides("libero", case)
    hard = engine("libero", msgspec.structs.replace(case, reset="hard"), theirs)
    assert [episode["physics"] for episode in hard] == [episode["physics"] for episode in fast]
    assert [episode["frames"] for episode in hard] == [episode["frames"] for episode in fast]


def test_a_difference_is_found_where_there_is_one() -> None:
    theirs = [{"digest": "a", "physics": ["0", "1"], "frames": [{"image": "0"}, {"image": "1"}]}]
    ours = [{"digest": "b", "physics": {"1": "2"}, "frames": {"0": {"image": "0"}, "1": {"image": "stale"}}}]
    found = differences("libero", Case(suite="goal", task_id=1), theirs, ours)
    assert found == [
        "libero goal 1 episode 0: digest",
        "libero goal 1 episode 0: physics at step 1",
        "libero goal 1 episode 0: frames at step 1",
    ]
