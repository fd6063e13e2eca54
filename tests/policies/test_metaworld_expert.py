"""Meta-World's scripted experts, through our simulator and without it."""

from __future__ import annotations

import warnings

import numpy as np
import pytest
from msgspec import structs

from rollout.envs.metaworld import MetaWorldSimulator
from rollout.envs.metaworld_tasks import INSTRUCTIONS
from rollout.errors import UsageError
from rollout.policies.base import Request
from rollout.policies.metaworld_expert import MetaWorldExpert
from rollout.types import EpisodeSpec, Observation, TaskInfo

pytestmark = pytest.mark.metaworld

KEY = "observation.environment_state"


def spec(task: str, seed: int = 1000) -> EpisodeSpec:
    return EpisodeSpec(suite=f"metaworld:{task}", task=task, task_id=0, episode=0, seed=seed, horizon=500)


def request(expert: MetaWorldExpert, info: TaskInfo, observation: Observation) -> Request:
    episode = spec(info.task)
    return Request(episode, info, 0, 0, expert.open_session(episode, info), observation)


def evaluate(task: str) -> tuple[list[float], bool | None]:
    """Rewards and success of one episode of ours."""
    simulator = MetaWorldSimulator(MetaWorldSimulator.describe(task, {}), 0, {})
    simulator.build()
    expert = MetaWorldExpert()
    episode = spec(task)
    session = expert.open_session(episode, simulator.info)
    observation = simulator.reset(episode, expert.spec.observation_request)
    rewards: list[float] = []
    while True:
        n = len(rewards)
        [chunk] = expert.infer([Request(episode, simulator.info, n, n, session, observation)])
        assert chunk.shape == (1, 4)
        assert chunk.dtype == np.float32
        assert np.abs(chunk).max() <= 1
        step = simulator.step(chunk[0], True)
        rewards.append(step.reward)
        if step.terminated or step.truncated:
            assert step.terminated == step.success
            simulator.close()
            return rewards, step.success
        assert step.observation is not None
        observation = step.observation


def upstream(task: str) -> tuple[list[float], bool]:
    """The same, in a loop written on Meta-World itself; the script's actions are left unclipped."""
    import metaworld
    from metaworld.policies import ENV_POLICY_MAP

    benchmark = metaworld.MT1(task, seed=42)
    env = benchmark.train_classes[task]()
    env.set_task(benchmark.train_tasks[0])
    env.reset()
    env._freeze_rand_vec = False
    env.seeded_rand_vec = True
    env.seed(1000)
    state, _ = env.reset()
    script, success = ENV_POLICY_MAP[task](), False
    rewards: list[float] = []
    while not success and len(rewards) < 500:
        state, reward, _, _, info = env.step(script.get_action(state.astype(np.float32)))
        rewards.append(float(reward))
        success = bool(info["success"])
    return rewards, success


@pytest.mark.parametrize("task", ["reach-v3", "push-v3", "drawer-close-v3", "peg-insert-side-v3"])
@pytest.mark.filterwarnings(r"ignore:Constant\(s\) may be too high")
def test_an_expert_succeeds_with_upstreams_rewards_bit_for_bit(task: str) -> None:
    rewards, success = evaluate(task)
    assert success
    assert (rewards, success) == upstream(task)


def test_every_task_has_an_expert_which_leaves_its_observation_as_it_is() -> None:
    expert, suite = MetaWorldExpert(), MetaWorldSimulator.describe("mt50", {})
    assert len(suite.tasks) == len(INSTRUCTIONS)
    state = np.linspace(-1, 1, 39, dtype=np.float32)
    state.flags.writeable = False  # as arrays from the wire are
    for task in suite.tasks:
        each = request(expert, MetaWorldSimulator(suite, task.task_id, {}).info, {KEY: state})
        [chunk] = expert.infer([each])
        assert np.isfinite(chunk).all()


def test_experts_of_several_tasks_share_a_batch() -> None:
    expert, suite = MetaWorldExpert(), MetaWorldSimulator.describe("mt10", {})
    observation = {KEY: np.linspace(0, 0.05, 39, dtype=np.float32)}  # near the objects: actions differ
    batch = [request(expert, MetaWorldSimulator(suite, task, {}).info, observation) for task in range(10)]
    together = expert.infer(batch)
    alone = [expert.infer([each])[0] for each in batch]
    np.testing.assert_array_equal(together, alone)
    assert len({chunk.tobytes() for chunk in together}) > 5


def test_only_the_warning_about_clipping_is_silenced() -> None:
    expert, suite = MetaWorldExpert(), MetaWorldSimulator.describe("reach-v3", {})
    far = request(expert, MetaWorldSimulator(suite, 0, {}).info, {KEY: np.full(39, 5, np.float32)})
    far.observation[KEY][:3] = -5
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with pytest.raises(UserWarning, match="too high"):
            far.session.get_action(far.observation[KEY])
    assert expert.infer([request(expert, far.task, far.observation)])[0].max() == 1
    with pytest.raises(UserWarning, match="something else"):
        warnings.warn("something else", UserWarning, stacklevel=1)


def test_another_simulator_is_a_usage_error_that_names_it() -> None:
    suite = MetaWorldSimulator.describe("reach-v3", {})
    info = MetaWorldSimulator(suite, 0, {}).info
    elsewhere = structs.replace(info, suite="libero:goal")
    with pytest.raises(UsageError, match="libero:goal"):
        MetaWorldExpert().open_session(spec("reach-v3"), elsewhere)
