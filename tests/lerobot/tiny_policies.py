"""The checkpoints of these tests, by name."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest
from checkpoints import FRONT, save
from vlms import save_multi_task_dit, save_pi, save_smolvla

Saver = Callable[[Path, pytest.MonkeyPatch], Path]


def _saver(saved: Callable[..., Path], *arguments: str, **settings: object) -> Saver:
    return lambda folder, _: saved(folder, *arguments, **settings)


def _pi(kind: str, **settings: object) -> Saver:
    return lambda folder, patch: partial(save_pi, folder, kind, patch)(**settings)


POLICIES: dict[str, Saver] = {
    "act, the whole chunk": _saver(save, "act", n_action_steps=8),
    "act, a part of the chunk": _saver(save, "act", n_action_steps=3),
    "act, temporal ensembling": _saver(save, "act", n_action_steps=1, temporal_ensemble_coeff=0.01),
    "diffusion, DDPM": _saver(save, "diffusion"),
    "diffusion, DDPM, the whole chunk": _saver(save, "diffusion", n_action_steps=7),
    "diffusion, DDIM": _saver(save, "diffusion", noise_scheduler_type="DDIM", num_inference_steps=4),
    "vqbet": _saver(save, "vqbet", images=(FRONT,)),
    "multi_task_dit, diffusion": _saver(save_multi_task_dit),
    "multi_task_dit, flow matching": _saver(save_multi_task_dit, objective="flow_matching"),
    "smolvla": _saver(save_smolvla),
    "smolvla, an empty camera": _saver(save_smolvla, empty_cameras=1),
    "pi0": _pi("pi0"),
    "pi0, an empty camera": _pi("pi0", empty_cameras=1),
    "pi0, relative actions": _pi(
        "pi0", use_relative_actions=True, relative_exclude_joints=[], n_action_steps=1
    ),
    "pi05": _pi("pi05"),
}
