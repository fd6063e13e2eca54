"""Meta-World: the right episodes, the same ones as upstream's, and nothing rendered that nobody looks at."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rollout.envs.metaworld import MetaWorldSimulator
from rollout.envs.metaworld_tasks import BENCHMARKS, DIFFICULTIES, INSTRUCTIONS
from rollout.errors import UsageError
from rollout.spaces import rebuild
from rollout.types import EpisodeSpec, ObservationRequest, SuiteInfo, Task

PICTURES = Path(__file__).with_name("metaworld_pictures.py")
STATE = "observation.state"
ENVIRONMENT_STATE = "observation.environment_state"
STATES = ObservationRequest(keys=(STATE, ENVIRONMENT_STATE))


def spec(task: str, seed: int, horizon: int = 500) -> EpisodeSpec:
    return EpisodeSpec(suite=f"metaworld:{task}", task=task, task_id=0, episode=0, seed=seed, horizon=horizon)


def built(task: str, **options: str) -> MetaWorldSimulator:
    simulator = MetaWorldSimulator(MetaWorldSimulator.describe(task, options), 0, options)
    simulator.build()
    return simulator


def random_actions(n_steps: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).uniform(-1, 1, (n_steps, 4)).astype(np.float32)


def run(simulator: MetaWorldSimulator, seed: int, actions: np.ndarray) -> list[bytes]:
    """The episode, as bytes: every observation and reward."""
    first = simulator.reset(spec(simulator.info.task, seed), STATES)
    episode = [first[ENVIRONMENT_STATE].tobytes()]
    for action in actions:
        step = simulator.step(action, True)
        assert step.observation is not None
        episode += [step.observation[ENVIRONMENT_STATE].tobytes(), np.float64(step.reward).tobytes()]
    return episode


def upstream(task: str, seed: int, actions: np.ndarray) -> list[bytes]:
    """The same, in a loop written on Meta-World itself, as LeRobot makes its environments."""
    import metaworld

    benchmark = metaworld.MT1(task, seed=42)
    env = benchmark.train_classes[task]()
    env.set_task(benchmark.train_tasks[0])
    env.reset()
    env._freeze_rand_vec = False
    env.seeded_rand_vec = True
    env.seed(seed)
    state, _ = env.reset()
    episode = [state.astype(np.float32).tobytes()]
    for action in actions:
        state, reward, _, _, _ = env.step(action)
        episode += [state.astype(np.float32).tobytes(), np.float64(reward).tobytes()]
    return episode


@pytest.fixture(scope="module")
def push() -> Iterator[MetaWorldSimulator]:
    simulator = built("push-v3")
    yield simulator
    simulator.close()


@pytest.fixture(scope="module")
def plain(in_child: Callable[..., Any]) -> Any:
    return in_child(PICTURES, "plain")


@pytest.mark.metaworld
def test_every_task_of_meta_world_has_an_instruction_and_a_difficulty() -> None:
    from metaworld.env_dict import ALL_V3_ENVIRONMENTS

    assert set(INSTRUCTIONS) == set(ALL_V3_ENVIRONMENTS)
    assert sorted(task for tasks in DIFFICULTIES.values() for task in tasks) == sorted(INSTRUCTIONS)
    assert not any("_" in text or "-v3" in text for text in INSTRUCTIONS.values())


@pytest.mark.metaworld
@pytest.mark.parametrize(
    ("name", "n_tasks"),
    [
        ("mt10", 10),
        ("mt25", 25),
        ("mt50", 50),
        ("ml10", 10),
        ("ml10-test", 5),
        ("ml25", 25),
        ("ml25-test", 5),
        ("ml45", 45),
        ("ml45-test", 5),
        ("easy", 28),
        ("medium", 11),
        ("hard", 6),
        ("very_hard", 5),
        ("reach-v3", 1),
    ],
)
def test_a_suite_lists_its_tasks_with_instructions_and_versions(name: str, n_tasks: int) -> None:
    suite = MetaWorldSimulator.describe(name, {})
    assert suite.suite == f"metaworld:{name}"
    assert [task.task_id for task in suite.tasks] == list(range(n_tasks))
    assert all(task.instruction == INSTRUCTIONS[task.task] and task.horizon == 500 for task in suite.tasks)
    assert suite.versions.keys() == {"metaworld", "mujoco"}


@pytest.mark.metaworld
def test_benchmarks_keep_meta_worlds_own_order() -> None:
    from metaworld import env_dict

    assert [task.task for task in MetaWorldSimulator.describe("mt10", {}).tasks] == list(env_dict.MT10_V3)
    held_out = MetaWorldSimulator.describe("ml45-test", {}).tasks
    assert [task.task for task in held_out] == list(env_dict.ML45_V3["test"])


def test_a_task_may_be_named_without_its_version() -> None:
    assert MetaWorldSimulator.expand("reach") == MetaWorldSimulator.expand("reach-v3") == ("reach-v3",)
    assert MetaWorldSimulator.aliases["metaworld:reach"] == "metaworld:reach-v3"


def test_every_name_is_listed_once() -> None:
    assert len(set(MetaWorldSimulator.names)) == len(MetaWorldSimulator.names) == 50 + 4 + len(BENCHMARKS)


def test_an_unknown_name_is_a_usage_error_that_names_the_nearest() -> None:
    with pytest.raises(UsageError, match="did you mean 'drawer-open-v3'"):
        MetaWorldSimulator.expand("drawer-opn-v3")


@pytest.mark.parametrize(
    ("option", "value", "valid"),
    [
        ("camera", "corner9", "corner2, corner"),
        ("height", "tall", "16 to 4096"),
        ("width", "0", "16 to 4096"),
    ],
)
def test_a_bad_option_is_a_usage_error_that_says_what_is_valid(option: str, value: str, valid: str) -> None:
    with pytest.raises(UsageError, match=f"{option}={value}.*{valid}"):
        MetaWorldSimulator.describe("reach-v3", {option: value})


def test_the_constructor_needs_no_simulator() -> None:
    suite = SuiteInfo(suite="metaworld:reach-v3", tasks=(Task(task="reach-v3", task_id=0, horizon=500),))
    info = MetaWorldSimulator(suite, 0, {"camera": "topview", "height": "64", "width": "32"}).info
    assert rebuild(info.observation_space["observation.images.topview"]).shape == (64, 32, 3)
    assert (info.fps, info.horizon) == (80, 500)


@pytest.mark.metaworld
@pytest.mark.parametrize("task", ["push-v3", "drawer-open-v3", "hammer-v3"])
def test_an_episode_equals_upstreams_bit_for_bit(task: str) -> None:
    actions = random_actions(60)
    simulator = built(task)
    assert run(simulator, 1000, actions) == upstream(task, 1000, actions)
    simulator.close()


@pytest.mark.metaworld
@pytest.mark.parametrize("task", ["push-v3", "disassemble-v3", "door-lock-v3"])
def test_an_episode_does_not_depend_on_what_ran_before(task: str) -> None:
    simulator, actions = built(task), random_actions(60)
    fresh = run(simulator, 1000, actions)
    for seed in (5, 2**40):
        assert run(simulator, seed, random_actions(100, seed)) != fresh
    np.random.seed(1)
    assert run(simulator, 1000, actions) == fresh
    simulator.close()


@pytest.mark.metaworld
def test_the_seed_moves_the_goal(push: MetaWorldSimulator) -> None:
    goals = {push.reset(spec("push-v3", seed), STATES)[ENVIRONMENT_STATE][-3:].tobytes() for seed in range(5)}
    assert len(goals) == 5


@pytest.mark.metaworld
@pytest.mark.parametrize("suite", ["mt10", "ml10"])
def test_the_environment_state_tells_the_goal_and_the_state_does_not(suite: str) -> None:
    tasks = MetaWorldSimulator.describe(suite, {})
    simulator = MetaWorldSimulator(tasks, 1, {})  # push-v3 in both
    simulator.build()
    seen = simulator.reset(spec("push-v3", 3), ObservationRequest(keys=(STATE, ENVIRONMENT_STATE)))
    np.testing.assert_array_equal(seen[ENVIRONMENT_STATE][-3:], simulator._env._target_pos.astype(np.float32))
    np.testing.assert_array_equal(seen[STATE], seen[ENVIRONMENT_STATE][:4])
    simulator.close()


@pytest.mark.metaworld
def test_an_observation_holds_what_was_asked_for_within_its_space(push: MetaWorldSimulator) -> None:
    seen = push.reset(spec("push-v3", 3), STATES)
    assert seen.keys() == {STATE, ENVIRONMENT_STATE}
    for key, value in seen.items():
        assert rebuild(push.info.observation_space[key]).contains(value)
    told = push.reset(spec("push-v3", 3), ObservationRequest(keys=("task",)))
    assert told == {"task": "Push the puck to a goal"}
    assert push.step(np.zeros(4, np.float32), False).observation is None


@pytest.mark.metaworld
def test_a_key_that_there_is_not_is_a_usage_error(push: MetaWorldSimulator) -> None:
    with pytest.raises(UsageError, match=r"did you mean 'observation\.images\.corner2'"):
        push.reset(spec("push-v3", 3), ObservationRequest(keys=("observation.images.corner",)))


@pytest.mark.metaworld
@pytest.mark.parametrize("horizon", [5, 510])
def test_the_horizon_of_the_episode_is_the_environments(push: MetaWorldSimulator, horizon: int) -> None:
    push.reset(spec("push-v3", 3, horizon), STATES)
    steps = [push.step(np.zeros(4, np.float32), False) for _ in range(horizon)]
    assert [step.truncated for step in steps] == [False] * (horizon - 1) + [True]
    assert not any(step.terminated or step.success for step in steps)


@pytest.mark.metaworld
def test_closing_twice_is_harmless() -> None:
    simulator = built("reach-v3")
    simulator.close()
    simulator.close()
    assert simulator.info.task == "reach-v3"  # what it said of itself stays


@pytest.mark.metaworld
@pytest.mark.gl
@pytest.mark.parametrize("mode", ["ours", "filmed"])
def test_pictures_on_demand_are_those_of_a_loop_that_renders_every_step(
    mode: str, plain: Any, in_child: Callable[..., Any]
) -> None:
    seen = in_child(PICTURES, mode)
    looked = [index for index, picture in enumerate(seen) if picture is not None]
    assert looked == (list(range(0, 13, 4)) if mode == "ours" else list(range(13)))
    assert [seen[index] for index in looked] == [plain[index] for index in looked]
    assert len(set(plain)) > 10  # the pictures do move


@pytest.mark.metaworld
def test_a_policy_that_reads_no_camera_loads_no_gl_library(in_child: Callable[..., Any]) -> None:
    assert in_child(PICTURES, "blind", MUJOCO_GL="", PYOPENGL_PLATFORM="") == []
