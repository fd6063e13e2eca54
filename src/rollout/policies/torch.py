"""Any `torch.nn.Module` as a policy: batched tensors in, action chunks out."""

from __future__ import annotations

import importlib
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from threading import Lock
from typing import Any, Final, NamedTuple

import msgspec
import numpy as np
import torch

from rollout.config import EvalConfig
from rollout.errors import PolicyError, UsageError
from rollout.policies.base import PolicySpec, PolicySpent, Request, Session
from rollout.policies.cuda_graphs import Graphed
from rollout.policies.device import DTYPES, blocks, bucket, choose_device, fixed_rows
from rollout.policies.memory import Memory, row, stacked
from rollout.policies.staging import Staging, collate
from rollout.policies.watched import Watched
from rollout.types import EpisodeSpec, TaskInfo

__all__ = ["TorchPolicy", "collate"]

GIVE_BACK_S: Final = 2.0
SHAPES: Final = 64  # as many as a batch has sizes up to 960 rows


class TorchPolicy:
    """Wraps a module that maps a dict of batched tensors to actions.

    The module gets one entry per observation key: images (B, C, H, W) in [0, 1] (uint8 NHWC on the way to the
    device), other arrays (B, …), floating ones in the policy's dtype; with `n_obs_steps` > 1 a time axis
    follows B; text and nested values as lists of B. It returns (B, action_dim) or (B, chunk_size,
    action_dim). Its attribute `spec` (a `PolicySpec`), where it has one, says what it reads and how many
    actions of a chunk are executed; otherwise the whole chunk is executed, and everything is produced for it, or
    with `watch` what its first forward used (see `Watched`).

    With `spec.noise_shape` the batch has `noise` (B, *noise_shape), standard normal, each row drawn from its
    decision's own seed. A module with `initial_state()` is recurrent: it is called with (batch, state), the state of
    all rows stacked along a new leading axis, and returns (actions, new state).
    """

    def __init__(
        self,
        module: Any,
        *,
        device: torch.device,
        dtype: torch.dtype,
        rows: int | None,
        pads: bool = False,
        watch: bool = False,
        run: Callable[..., Any] | None = None,
    ) -> None:
        """`rows` is how many every forward has, None: as many as there are, with `pads` filled up to a bucket. `run`
        is called in the module's place where it is given: its compiled or captured form."""
        self.spec: PolicySpec = getattr(module, "spec", PolicySpec(n_action_steps=None))
        self.spent = PolicySpent()
        self.versions: dict[str, str] = getattr(module, "versions", {})
        self._initial_state = getattr(module, "initial_state", None)
        self._watch = watch and not hasattr(module, "spec") and self._initial_state is None
        self._withheld: frozenset[str] = frozenset()
        self._run, self._device, self._dtype = module if run is None else run, device, dtype
        self._rows, self._pads = rows, pads
        self._staging = Staging(device, dtype, self.spent)
        self._opener = getattr(module, "open_session", None)
        self._turn = Lock()  # held by whoever runs the module, or takes it away
        self._given_back = False

    @classmethod
    @contextmanager
    def evaluating(cls, module: torch.nn.Module, config: EvalConfig) -> Iterator[TorchPolicy]:
        """Move the module to the device and into evaluation mode; afterwards it is as it was.

        Raises `UsageError` where it cannot be moved.
        """
        device, dtype = choose_device(config.device), DTYPES[config.dtype]
        with _borrowed(module):
            try:
                module.to(device, dtype if config.dtype != "fp32" else None).eval()
            except (RuntimeError, AssertionError, NotImplementedError) as exc:  # torch has no rule
                reason = str(exc).partition("\n")[0]
                raise UsageError(f"the policy cannot be moved to --device {config.device}: {reason}") from exc
            # Several targets may have other keys each, and a compiled module is no place for a dict of ours.
            watch = len(config.targets) == 1 and not config.compile
            policy = cls(
                module,
                device=device,
                dtype=dtype,
                rows=fixed_rows(config, device),
                pads=config.compile or device.type == "cuda",
                watch=watch,
                run=_fast(module, config, device),
            )
            with _compiling() if config.compile else nullcontext():
                try:
                    yield policy
                finally:
                    policy._give_back()

    def open_session(self, episode: EpisodeSpec, task: TaskInfo) -> Session:
        """A recurrent module's initial state, or its own session where it defines `open_session`."""
        if self._initial_state is not None:
            return Memory(self._initial_state())
        return None if self._opener is None else self._opener(episode, task)

    @torch.inference_mode()
    def infer(self, requests: Sequence[Request]) -> Sequence[np.ndarray]:
        """One forward for all, or one for each block of fixed size; nothing is remembered unless all succeed."""
        with self._turn:
            if self._given_back:  # this evaluation was cancelled, and the module may be in training again
                raise PolicyError("the evaluation is over")
            try:
                return self._infer(requests)
            except torch.OutOfMemoryError as exc:
                if self._rows is None or self._rows == 1:
                    raise
                raise PolicyError(
                    f"the policy ran out of memory with the {self._rows} rows that every deterministic forward has: "
                    "--no-deterministic has as many as there are, and fewer where they do not fit"
                ) from exc

    def _infer(self, requests: Sequence[Request]) -> Sequence[np.ndarray]:
        began, staged = time.perf_counter(), self.spent.collate + self.spent.copy
        with self._here():
            answers = [self._forward(*block) for group in _alike(requests) for block in self._blocks(group)]
        # All of them are launched by now: waiting for the first holds nothing up.
        chunks = {
            id(request): chunk
            for answer in answers
            for request, chunk in zip(answer.requests, answer.on_host(), strict=True)
        }
        if self._initial_state is not None:
            self._remember(answers)
        staged = self.spent.collate + self.spent.copy - staged
        self.spent.forward += time.perf_counter() - began - staged
        return [chunks[id(request)] for request in requests]

    def _remember(self, answers: Sequence[_Answer]) -> None:
        """Keep the new states: all, or where memory runs out over them, none."""
        states = [
            (request, row(answer.states, index))
            for answer in answers
            for index, request in enumerate(answer.requests)
        ]
        for request, state in states:
            request.session.state = state

    def _give_back(self) -> None:
        """Let no forward run from now on: a cancelled evaluation leaves one behind. Waits for it, but not for ever."""
        if self._turn.acquire(timeout=GIVE_BACK_S):
            self._given_back = True
            self._turn.release()
        self._given_back = True

    def _here(self) -> AbstractContextManager[Any]:
        """Streams and graphs belong to the current device, which for a new thread is the first one."""
        return torch.cuda.device(self._device) if self._device.type == "cuda" else nullcontext()

    def _blocks(self, requests: Sequence[Request]) -> Iterator[tuple[list[Request], int]]:
        return blocks(requests, self._rows or (bucket(len(requests)) if self._pads else None))

    def _forward(self, requests: list[Request], count: int) -> _Answer:
        """Of the requests, the first `count` are asked for; the others fill the batch."""
        observations = [self._with_noise(request) for request in requests]
        states = None
        if self._watch:
            returned = self._watched(observations)
        elif self._initial_state is None:
            returned = self._run(self._staging.collate(observations))
        else:
            states = stacked([request.session.state for request in requests], self._device, self._dtype)
            returned, states = _two(self._run(self._staging.collate(observations), states))
        if not isinstance(returned, torch.Tensor) or returned.ndim < 1 or len(returned) != len(requests):
            shape = tuple(returned.shape) if isinstance(returned, torch.Tensor) else type(returned).__name__
            raise TypeError(
                f"the module returned {shape} for a batch of {len(requests)}: expected a tensor (B, …)"
            )
        # A copy: it may be memory that the module writes the next block's actions into.
        return _Answer(requests[:count], returned[:count].clone(), states)

    def _with_noise(self, request: Request) -> dict[str, Any]:
        if self.spec.noise_shape is None:
            return request.observation
        # Drawn on the CPU, whose generator gives the same numbers everywhere.
        generator = torch.Generator().manual_seed(request.noise_seed)
        noise = torch.randn(self.spec.noise_shape, generator=generator)
        return {**request.observation, "noise": noise.numpy()}

    def _watched(self, observations: Sequence[dict[str, Any]]) -> Any:
        """A forward that is watched: the first one settles what is produced from now on."""
        if self.spec.observation_keys is not None:  # episodes that began earlier still deliver the rest
            wanted = ("task", *self.spec.observation_keys)
            observations = [{key: each[key] for key in wanted if key in each} for each in observations]
        batch = Watched(self._staging.collate(observations), self._withheld)
        actions = self._run(batch)
        if self.spec.observation_keys is None:
            self._settle(batch.read, frozenset(observations[0]) - {"task"})
        return actions

    def _settle(self, read: frozenset[str] | None, produced: frozenset[str]) -> None:
        if read is None:  # it went through the whole dict: everything it is
            self._watch = False
            return
        self._withheld = produced - read
        self.spec = msgspec.structs.replace(self.spec, observation_keys=tuple(sorted(produced & read)))


class _Answer(NamedTuple):
    """What a forward gave."""

    requests: Sequence[Request]
    actions: torch.Tensor  # on the device, a row for each request
    states: Any  # of a recurrent module, batched

    def on_host(self) -> np.ndarray:
        """The actions in the host's memory: waits for the device."""
        numbers = self.actions.float() if self.actions.is_floating_point() else self.actions
        array: np.ndarray = numbers.cpu().numpy()
        return array


def _two(returned: Any) -> tuple[Any, Any]:
    if not isinstance(returned, tuple) or len(returned) != 2:
        raise TypeError(f"a recurrent module returns (actions, new state), not {type(returned).__name__}")
    return returned


def _alike(requests: Sequence[Request]) -> list[Sequence[Request]]:
    """Groups of requests whose observations have the same keys and shapes: several targets' need not."""
    if len(requests) == 1:
        return [requests]
    groups: dict[Any, list[Request]] = {}
    for request in requests:
        shapes = [(key, getattr(value, "shape", None)) for key, value in request.observation.items()]
        groups.setdefault(tuple(shapes), []).append(request)
    return list(groups.values())


def _fast(module: torch.nn.Module, config: EvalConfig, device: torch.device) -> Callable[..., Any] | None:
    """The module's compiled or captured form, where it was asked for or allows it."""
    if config.compile:
        compiled: Callable[..., Any] = torch.compile(module, dynamic=False)
        return compiled
    spec = getattr(module, "spec", None)
    if device.type != "cuda" or spec is None or not spec.cuda_graphs:
        return None
    if hasattr(module, "initial_state"):
        raise UsageError("a recurrent module cannot be captured: leave cuda_graphs out of its spec")
    return Graphed(module)


@contextmanager
def _compiling() -> Iterator[None]:
    """Room for all sizes of a padded batch: past torch's limit of 8 shapes a module runs as it was written, with other
    rounding, and which shape that is depends on the order in which they came."""
    config: Any = importlib.import_module("torch._dynamo.config")
    limit = "recompile_limit" if hasattr(config, "recompile_limit") else "cache_size_limit"
    with config.patch({limit: max(SHAPES, getattr(config, limit))}):
        yield


@contextmanager
def _borrowed(module: torch.nn.Module) -> Iterator[None]:
    """Give back modes, weights and buffers as they were: training goes on in its own precision and place."""
    owners = list(module.modules())
    modes = [owner.training for owner in owners]
    weights = [(weight, weight.data) for weight in module.parameters()]
    buffers = [dict(owner.named_buffers(recurse=False)) for owner in owners]
    try:
        yield
    finally:
        module.train(modes[0])  # first, because a module may do more here than set the flag (LoRA unmerges)
        for owner, training, kept in zip(owners, modes, buffers, strict=True):
            owner.training = training
            for name, buffer in kept.items():
                setattr(owner, name, buffer)
        for weight, data in weights:
            weight.data = data
