"""LeRobot's policies, behind `lerobot:PATH_OR_REPO`.

What a decision goes through is what huggingface/lerobot 0.6.1 does with it in `lerobot-eval` (scripts/lerobot_eval.py):
pictures as float32 (channels, height, width) in [0, 1], the checkpoint's own preprocessor on each step of the history,
the policy's queues filled as `select_action` fills them, `predict_action_chunk`, the checkpoint's own postprocessor.
Cutting the chunk and averaging chunks are the engine's, and noise is each decision's own.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any, Final

import numpy as np
import torch

from rollout.config import EvalConfig
from rollout.errors import UsageError
from rollout.policies.base import PolicySpec, PolicySpent, Request, Session
from rollout.policies.device import DTYPES, choose_device, fixed_rows, in_blocks
from rollout.policies.lerobot_checkpoint import Checkpoint, load_checkpoint
from rollout.policies.lerobot_keys import Wanted, check_task, wanted_keys
from rollout.policies.lerobot_noise import predicted_chunk, rows_at_once
from rollout.policies.lerobot_trust import without_remote_code
from rollout.types import EpisodeSpec, TaskInfo

__all__ = ["LoadedPolicy"]

ACTION: Final = "action"
IMAGES: Final = "observation.images"

WHOLE: Final = frozenset({"UnnormalizerProcessorStep", "DeviceProcessorStep", "AbsoluteActionsProcessorStep"})
"""Steps of a postprocessor that take (B, chunk_size, action_dim); others get what LeRobot gives them, one action."""

EXACT_SIZE: Final = frozenset({"act", "diffusion", "vqbet"})
"""Policies that do not bring pictures to a size of their own."""


class LoadedPolicy:
    """A checkpoint of any policy that LeRobot saves with its processors. Nothing of an episode stays in it."""

    def __init__(
        self,
        checkpoint: Checkpoint,
        inputs: tuple[Wanted, ...],
        *,
        device: torch.device,
        rows: int | None,
        dtype: torch.dtype | None,
        any_size: bool = False,
        trusted: bool = False,
    ) -> None:
        settings = checkpoint.settings
        self.spec = PolicySpec(
            observation_keys=tuple(each.key for each in inputs),
            n_obs_steps=settings.n_obs_steps,
            chunk_size=checkpoint.chunk_size,
            n_action_steps=checkpoint.n_action_steps,
            temporal_ensemble=getattr(settings, "temporal_ensemble_coeff", None),
        )
        self.versions = checkpoint.versions
        self.spent = PolicySpent()
        self._checkpoint, self._policy, self._inputs = checkpoint, checkpoint.policy, inputs
        self._device = device
        self._trusted = trusted  # with Python of the checkpoint's own
        self._dtype = dtype  # of the forward's matrix products; None: the checkpoint's own
        self._rows = rows_at_once(settings.type, rows)
        resizes = settings.type not in EXACT_SIZE or getattr(settings, "resize_shape", None) is not None
        self._sized = not (any_size or resizes)
        steps = checkpoint.preprocessor.steps
        self._pads_to_longest = any(getattr(step, "padding", "max_length") != "max_length" for step in steps)
        self._whole = all(type(step).__name__ in WHOLE for step in checkpoint.postprocessor.steps)

    @classmethod
    @contextmanager
    def opened(
        cls,
        locator: str,
        config: EvalConfig,
        /,
        *,
        rename: Mapping[str, str] | None = None,
        absent: Sequence[str] = (),
        revision: Any = None,
        any_size: bool = False,
        **overrides: Any,
    ) -> Iterator[LoadedPolicy]:
        """The checkpoint in a folder, or of a repository of the hub.

        `rename`: from our observation keys to the checkpoint's, where they are not matched by themselves; `absent`:
        inputs of the checkpoint that it is to go without; `revision`: of the repository; `any_size`: give the policy
        pictures of another size than it was trained with; `overrides`: settings of the policy, e.g.
        `num_inference_steps`. Raises `UsageError` with one line where the checkpoint cannot be loaded as it was saved.
        """
        device = choose_device(config.device)
        try:
            _check_arguments(rename, absent)
            revision = None if revision is None else str(revision)  # a commit may look like a number
            checkpoint = load_checkpoint(
                locator,
                revision,
                overrides,
                device,
                compiled=config.compile,
                trusted=config.trust_remote_code,
            )
            settings = checkpoint.settings
            if absent and not hasattr(settings, "empty_cameras"):
                raise UsageError(f"absent={absent!r}: a {settings.type} policy needs all its inputs")
            inputs = wanted_keys(
                settings.input_features or {},
                checkpoint.saved_names,
                rename or {},
                absent,
                config,
                empty_cameras=getattr(settings, "empty_cameras", 0) > 0,
            )
        except UsageError as exc:
            raise UsageError(f"policy 'lerobot:{locator}': {exc}") from exc
        yield cls(
            checkpoint,
            inputs,
            device=device,
            rows=fixed_rows(config, device),
            dtype=None if config.dtype == "fp32" else DTYPES[config.dtype],
            any_size=any_size,
            trusted=config.trust_remote_code,
        )

    def open_session(self, episode: EpisodeSpec, task: TaskInfo) -> Session:
        """Nothing to remember. Raises `UsageError` where the simulator's shapes are not the checkpoint's."""
        check_task(self._checkpoint.settings, self._inputs, task, sized=self._sized)

    def infer(self, requests: Sequence[Request]) -> Sequence[np.ndarray]:
        """One chunk a request, float32 (chunk_size, action_dim), with one forward for all or one for each block."""
        chunks: dict[int, np.ndarray] = {}
        for group in self._groups(requests):
            chunks.update(zip(map(id, group), in_blocks(group, self._rows, self._forward), strict=True))
        return [chunks[id(request)] for request in requests]

    def _groups(self, requests: Sequence[Request]) -> Iterable[Sequence[Request]]:
        """Those that may share a block: text that is padded to the longest of a block makes rows depend on the others,
        though all blocks have the same number of rows."""
        if self._rows is None or not self._pads_to_longest:
            return [requests]
        groups: dict[str, list[Request]] = {}
        for request in requests:
            groups.setdefault(request.observation["task"], []).append(request)
        return groups.values()

    @torch.inference_mode()
    def _forward(self, requests: Sequence[Request]) -> np.ndarray:
        history = self._history(requests)
        began = time.perf_counter()
        # Some load their tokenizers only now.
        with self._precision(), without_remote_code(trusted=self._trusted):
            chunk = self._predicted(history, [request.noise_seed for request in requests])
        actions: np.ndarray = self._postprocessed(chunk.float()).float().cpu().numpy()
        self.spent.forward += time.perf_counter() - began
        return actions

    def _history(self, requests: Sequence[Request]) -> list[dict[str, Any]]:
        """A batch for each step of the history, oldest first, as the preprocessor takes it."""
        steps = self.spec.n_obs_steps
        values = {each.given: self._stacked(each, requests) for each in self._inputs}
        tasks = [request.observation["task"] for request in requests]
        return [
            {key: value[:, step] if steps > 1 else value for key, value in values.items()}
            | {"task": list(tasks)}
            for step in range(steps)
        ]

    def _stacked(self, wanted: Wanted, requests: Sequence[Request]) -> torch.Tensor:
        began = time.perf_counter()
        arrays = np.stack([request.observation[wanted.key] for request in requests])
        stacked = time.perf_counter()
        tensor = torch.from_numpy(arrays).to(self._device)
        if wanted.image:
            tensor = tensor.movedim(-1, -3).contiguous()
        converted = tensor.float() / 255 if tensor.dtype == torch.uint8 and wanted.image else tensor.float()
        self.spent.collate += stacked - began
        self.spent.copy += time.perf_counter() - stacked
        return converted

    def _predicted(self, history: Sequence[dict[str, Any]], seeds: Sequence[int]) -> torch.Tensor:
        self._policy.reset()
        try:
            for step in history:  # the last one goes last: processors remember what they saw last
                batch = self._remembered(self._checkpoint.preprocessor(step))
            return predicted_chunk(self._policy, batch, seeds)
        finally:
            self._policy.reset()

    def _remembered(self, batch: dict[str, Any]) -> dict[str, Any]:
        """The batch, put into those queues of the policy that it predicts from, as `select_action` does it."""
        from lerobot.policies.utils import populate_queues

        del batch[ACTION]  # None
        queues = getattr(self._policy, "_queues", None) or {}
        if IMAGES in queues:
            pictures = [batch[name] for name in self._checkpoint.settings.image_features]
            batch[IMAGES] = torch.stack(pictures, dim=-4)
        populate_queues(queues, batch)
        return batch

    def _postprocessed(self, chunk: torch.Tensor) -> torch.Tensor:
        postprocess = self._checkpoint.postprocessor
        if self._whole:
            actions: torch.Tensor = postprocess(chunk)
            return actions
        return torch.stack([postprocess(action) for action in chunk.unbind(1)], dim=1)

    def _precision(self) -> AbstractContextManager[Any]:
        """LeRobot runs a policy under autocast where its `use_amp` says so; `--dtype` asks for the same."""
        if self._dtype is None and not self._checkpoint.settings.use_amp:
            return nullcontext()
        return torch.autocast(self._device.type, self._dtype)


def _check_arguments(rename: Any, absent: Any) -> None:
    pairs = rename.items() if isinstance(rename, Mapping) else [(rename, "")] if rename is not None else []
    if not all(isinstance(key, str) and isinstance(name, str) and name for key, name in pairs):
        raise UsageError(
            f"rename={rename!r}: give a JSON object from our keys to the checkpoint's, "
            """e.g. --policy-arg 'rename={"observation.images.image": "observation.images.front"}'"""
        )
    if isinstance(absent, str) or not all(isinstance(name, str) for name in absent):
        raise UsageError(f"absent={absent!r}: give a JSON list of the checkpoint's keys")
