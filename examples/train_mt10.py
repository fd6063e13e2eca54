"""Train the example policy: Meta-World's scripted experts, cloned on MT10 in minutes and without a GPU.

    python examples/train_mt10.py
    python examples/train_mt10.py --head flow      # one that draws its actions, by flow matching

Demonstrations are collected through the engine itself, by a policy that acts as the expert does, is knocked
off its path now and then, and writes down what the expert would have done. The seeds of its episodes start at
100000 and those of an evaluation at 1000: no episode is trained on and then measured.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

import rollout
from mt10_policy import HEADS, STATE, Mt10FlowPolicy, Mt10Policy
from rollout.display.select import create_display
from rollout.policies.base import noise_seed
from rollout.policies.builtin import ExpertPolicy

TRAINING_SEED = 100_000  # of every task's first episode; evaluations start at 1000
CHUNK_SIZE, N_ACTION_STEPS = 10, 5
BATCH = 512
CHECKPOINTS = {
    Mt10Policy.head: Path("examples/checkpoints/mt10.safetensors"),
    Mt10FlowPolicy.head: Path("examples/checkpoints/mt10-flow.safetensors"),
}


@dataclass
class Demonstration:
    """One episode of the expert: at every step, what was seen and what the expert wanted to do."""

    instruction: str
    script: rollout.Policy
    pushes: Pushes
    states: list[np.ndarray] = field(default_factory=list)  # float32 (39,)
    actions: list[np.ndarray] = field(default_factory=list)  # float32 (4,), the expert's
    disturbed: list[bool] = field(default_factory=list)  # whether another one was executed


class Pushes:
    """Once in 40 steps, for up to 10 steps, the hand is pushed somewhere, sometimes with another grip."""

    def __init__(self, seed: int) -> None:
        self._rng = np.random.default_rng(seed)
        self._steps = 0

    def action(self, wanted: np.ndarray) -> np.ndarray | None:
        """What is executed instead of `wanted`; None while nothing pushes."""
        if not self._steps and self._rng.random() < 1 / 40:
            self._steps = int(self._rng.integers(1, 11))
            self._push = self._rng.uniform(-1, 1, 4)
            self._grips = self._rng.random() < 0.2
        if not self._steps:
            return None
        self._steps -= 1
        return self._push if self._grips else np.append(self._push[:3], wanted[3])


class DisturbedExpert:
    """Meta-World's experts, pushed off their path at random, so that the data show the way back."""

    spec = ExpertPolicy.spec

    def __init__(self) -> None:
        self._expert = ExpertPolicy()
        self.demonstrations: dict[tuple[str, int, int], Demonstration] = {}

    def open_session(self, episode: rollout.EpisodeSpec, task: rollout.TaskInfo) -> Demonstration:
        """A new demonstration; its pushes depend on the episode alone, not on what runs beside it."""
        script = self._expert.open_session(episode, task)
        demonstration = Demonstration(task.instruction, script, Pushes(noise_seed(episode, 0)))
        self.demonstrations[episode.suite, episode.task_id, episode.episode] = demonstration
        return demonstration

    def infer(self, requests: Sequence[rollout.Request]) -> list[np.ndarray]:
        """One action a request: (1, 4)."""
        return [self._act(request)[np.newaxis] for request in requests]

    def _act(self, request: rollout.Request) -> np.ndarray:
        demonstration: Demonstration = request.session
        wanted = self._wanted(request, demonstration.script)
        pushed = demonstration.pushes.action(wanted)
        demonstration.states.append(request.observation[STATE].copy())
        demonstration.actions.append(wanted.astype(np.float32))
        demonstration.disturbed.append(pushed is not None)
        return wanted if pushed is None else pushed

    def _wanted(self, request: rollout.Request, script: rollout.Policy) -> np.ndarray:
        episode, task, decision, step = request.episode, request.task, request.decision, request.step
        [[action]] = self._expert.infer(
            [rollout.Request(episode, task, decision, step, script, request.observation)]
        )
        return action


def collect(target: str, episodes: int) -> list[Demonstration]:
    """Demonstrations of the episodes that succeeded, in the plan's order, whichever finished first."""
    policy = DisturbedExpert()
    report = rollout.run(
        policy, target, episodes=episodes, seed=TRAINING_SEED, display=create_display("auto", sys.stdout)
    )
    kept = [policy.demonstrations[result.key] for result in report.episodes if result.success]
    if not kept:
        raise SystemExit(f"no demonstration of {target} succeeded: nothing to learn from")
    steps = sum(len(each.states) for each in kept)
    print(f"{len(kept)} of {len(report.episodes)} demonstrations succeeded: {steps} steps to learn from")
    return kept


@dataclass(frozen=True)
class Samples:
    """What is trained on; N is the number of steps in all demonstrations."""

    states: Tensor  # float32 (N, 39)
    task_ids: Tensor  # int64 (N,)
    chunks: Tensor  # float32 (N, CHUNK_SIZE, 4)
    valid: Tensor  # bool (N, CHUNK_SIZE)

    @classmethod
    def of(cls, demonstrations: Sequence[Demonstration], instructions: Sequence[str]) -> Samples:
        """Every step of every demonstration, with the actions that follow it."""
        cut = [_chunks(demonstration) for demonstration in demonstrations]
        task_ids = [instructions.index(each.instruction) for each in demonstrations for _ in each.states]
        return cls(
            states=torch.from_numpy(np.stack([state for each in demonstrations for state in each.states])),
            task_ids=torch.tensor(task_ids),
            chunks=torch.from_numpy(np.concatenate([chunks for chunks, _ in cut])),
            valid=torch.from_numpy(np.concatenate([valid for _, valid in cut])),
        )

    def __len__(self) -> int:
        return len(self.states)

    def __getitem__(self, rows: Tensor) -> Samples:
        return Samples(self.states[rows], self.task_ids[rows], self.chunks[rows], self.valid[rows])

    def batches(self) -> Iterator[Samples]:
        """All samples once, in an order drawn from torch's global generator."""
        for rows in torch.randperm(len(self)).split(BATCH):
            yield self[rows]


def _chunks(demonstration: Demonstration) -> tuple[np.ndarray, np.ndarray]:
    """For every step the next CHUNK_SIZE actions, and which of them are labels.

    Past the end the last action goes on. Behind a push inside the chunk the expert answers something that
    could not be foreseen at its start: no label.
    """
    steps = len(demonstration.states)
    rows = np.minimum(np.arange(steps)[:, np.newaxis] + np.arange(CHUNK_SIZE), steps - 1)
    pushed = np.cumsum(demonstration.disturbed) - demonstration.disturbed  # how many steps before this one
    return np.stack(demonstration.actions)[rows], pushed[rows] == pushed[:, np.newaxis]


def train(samples: Samples, instructions: Sequence[str], *, head: str, epochs: int, seed: int) -> Mt10Policy:
    """Behaviour cloning: whole chunks, with the head's own loss."""
    # One thread: the matrices are small, and the weights then do not depend on the number of cores.
    torch.set_num_threads(1)
    torch.manual_seed(seed)
    policy = HEADS[head](instructions, chunk_size=CHUNK_SIZE, n_action_steps=N_ACTION_STEPS)
    policy.normalise(samples.states)
    optimizer = torch.optim.AdamW(policy.parameters(), weight_decay=1e-4)
    steps = epochs * -(-len(samples) // BATCH)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=2e-3, total_steps=steps, pct_start=0.05)
    for epoch in range(1, epochs + 1):
        losses = []
        for batch in samples.batches():
            loss = LOSSES[head](policy, batch)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            schedule.step()
            losses.append(loss.item())
        if epoch % max(1, epochs // 6) == 0:
            print(f"epoch {epoch}/{epochs}  loss {sum(losses) / len(losses):.4f}", flush=True)
    return policy.eval()


def regression_loss(policy: Mt10Policy, batch: Samples) -> Tensor:
    """L1 over the actions that are labels: a scalar."""
    predicted = policy.decode(policy.embed(batch.states, batch.task_ids))
    return (predicted - batch.chunks).abs()[batch.valid].mean()


def flow_loss(policy: Mt10FlowPolicy, batch: Samples) -> Tensor:
    """Squared error of the velocity, at one random point of each path from noise to what was demonstrated: a scalar."""
    actions = batch.chunks.clamp(-1, 1)  # as they were executed: noise need not be carried further
    noise, time = torch.randn_like(actions), torch.rand(len(actions))
    between = torch.lerp(noise, actions, time[:, None, None])
    velocity = policy.velocity(between, time, policy.embed(batch.states, batch.task_ids))
    return F.mse_loss(velocity, actions - noise, reduction="none")[batch.valid].mean()


LOSSES: Mapping[str, Callable[[Any, Samples], Tensor]] = {
    Mt10Policy.head: regression_loss,
    Mt10FlowPolicy.head: flow_loss,
}


def main() -> None:
    """Collect, train, save, and say how to evaluate."""
    arguments = _arguments()
    out = arguments.out or CHECKPOINTS[arguments.head]
    began = time.monotonic()
    demonstrations = collect(arguments.target, arguments.episodes_per_task)
    collected = time.monotonic()
    instructions = list(dict.fromkeys(each.instruction for each in demonstrations))
    samples = Samples.of(demonstrations, instructions)
    policy = train(samples, instructions, head=arguments.head, epochs=arguments.epochs, seed=arguments.seed)
    policy.save(out)
    trained = time.monotonic()
    print(f"collected in {collected - began:.0f} s, trained in {trained - collected:.0f} s: {out}")
    checkpoint = "" if out == CHECKPOINTS[Mt10Policy.head] else f" --policy-arg checkpoint={out}"
    print("evaluate it, from the root of the repository, with")
    print(f"  rollout run {arguments.target} --policy examples.mt10_policy:load{checkpoint} --episodes 10")


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Clone Meta-World's scripted experts into one small policy.")
    parser.add_argument("--target", default="metaworld:mt10", help="what to learn (default %(default)s)")
    parser.add_argument(
        "--head",
        choices=list(HEADS),
        default=Mt10Policy.head,
        help="how actions come about (default %(default)s)",
    )
    parser.add_argument(
        "--episodes-per-task", type=int, default=100, help="to learn from (default %(default)s)"
    )
    parser.add_argument("--epochs", type=int, default=30, help="passes over them (default %(default)s)")
    parser.add_argument("--out", type=Path, help="the checkpoint (default: one for each head)")
    parser.add_argument("--seed", type=int, default=0, help="of weights and batches (default %(default)s)")
    return parser.parse_args()


if __name__ == "__main__":
    main()
