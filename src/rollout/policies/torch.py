"""Any `torch.nn.Module` as a policy: batched tensors in, action chunks out."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import msgspec
import numpy as np
import torch

from rollout.config import EvalConfig
from rollout.errors import UsageError
from rollout.policies.base import PolicySpec, Request, Session
from rollout.policies.device import DTYPES, choose_device, fixed_rows, in_blocks
from rollout.policies.watched import Watched
from rollout.types import EpisodeSpec, TaskInfo

__all__ = ["TorchPolicy", "collate"]


class TorchPolicy:
    """Wraps a module that maps a dict of batched tensors to actions.

    The module gets one entry per observation key: images (B, C, H, W) in [0, 1] (uint8 NHWC on the way to the
    device), other arrays (B, …), floating ones in the policy's dtype; with `n_obs_steps` > 1 a time axis
    follows B; text and nested values as lists of B. It returns (B, action_dim) or (B, chunk_size,
    action_dim). Its attribute `spec` (a `PolicySpec`), where it has one, says what it reads and how many
    actions of a chunk are executed; otherwise the whole chunk is executed, and everything is produced for it, or
    with `watch` what its first forward used (see `Watched`).
    """

    def __init__(
        self,
        module: torch.nn.Module,
        *,
        device: torch.device,
        dtype: torch.dtype,
        block: int | None,
        watch: bool = False,
    ) -> None:
        self.spec: PolicySpec = getattr(module, "spec", PolicySpec(n_action_steps=None))
        self._watch = watch and not hasattr(module, "spec")
        self._withheld: frozenset[str] = frozenset()
        self._module, self._device, self._dtype = module, device, dtype
        self._block = block  # rows of every forward; None: as many as there are
        self._opener = getattr(module, "open_session", None)

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
            run: Any = torch.compile(module) if config.compile else module
            # Several targets may have other keys each, and a compiled module is no place for a dict of ours.
            watch = len(config.targets) == 1 and not config.compile
            yield cls(run, device=device, dtype=dtype, block=fixed_rows(config, device), watch=watch)

    def open_session(self, episode: EpisodeSpec, task: TaskInfo) -> Session:
        """The module's own session where it defines `open_session`."""
        return None if self._opener is None else self._opener(episode, task)

    def infer(self, requests: Sequence[Request]) -> Sequence[np.ndarray]:
        """One forward for all, or one per block of fixed size."""
        return in_blocks(requests, self._block, self._forward)

    @torch.inference_mode()
    def _forward(self, requests: Sequence[Request]) -> np.ndarray:
        observations = [request.observation for request in requests]
        actions = self._watched(observations) if self._watch else self._module(self._collate(observations))
        if not isinstance(actions, torch.Tensor) or actions.ndim < 1 or actions.shape[0] != len(requests):
            shape = tuple(actions.shape) if isinstance(actions, torch.Tensor) else type(actions).__name__
            raise TypeError(
                f"the module returned {shape} for a batch of {len(requests)}: expected a tensor (B, …)"
            )
        result: np.ndarray = (actions.float() if actions.is_floating_point() else actions).cpu().numpy()
        return result

    def _collate(self, observations: Sequence[dict[str, Any]]) -> dict[str, Any]:
        return collate(observations, self._device, self._dtype)

    def _watched(self, observations: Sequence[dict[str, Any]]) -> Any:
        """A forward that is watched: the first one settles what is produced from now on."""
        if self.spec.observation_keys is not None:  # episodes that began earlier still deliver the rest
            wanted = ("task", *self.spec.observation_keys)
            observations = [{key: each[key] for key in wanted if key in each} for each in observations]
        batch = Watched(self._collate(observations), self._withheld)
        actions = self._module(batch)
        if self.spec.observation_keys is None:
            self._settle(batch.read, frozenset(observations[0]) - {"task"})
        return actions

    def _settle(self, read: frozenset[str] | None, produced: frozenset[str]) -> None:
        if read is None:  # it went through the whole dict: everything it is
            self._watch = False
            return
        self._withheld = produced - read
        self.spec = msgspec.structs.replace(self.spec, observation_keys=tuple(sorted(produced & read)))


def collate(
    observations: Sequence[dict[str, Any]], device: torch.device, dtype: torch.dtype
) -> dict[str, Any]:
    """Stack observations along a new leading axis. Raises `ValueError` where shapes differ in the batch."""
    return {key: _stack(key, [each[key] for each in observations], device, dtype) for key in observations[0]}


def _stack(key: str, values: list[Any], device: torch.device, dtype: torch.dtype) -> Any:
    if not isinstance(values[0], np.ndarray):
        return values
    tensor = torch.from_numpy(np.stack(values)).to(device)
    if key.startswith("observation.images."):
        return tensor.movedim(-1, -3).to(dtype) / 255 if tensor.dtype == torch.uint8 else tensor
    return tensor.to(dtype) if tensor.is_floating_point() else tensor


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
