"""Small checkpoints with random weights, made and saved with LeRobot's own classes.

LeRobot is imported inside, so that tests of this folder can be collected without it.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

STATE, ACTION = 3, 2
FRONT, WRIST = "observation.images.front", "observation.images.wrist"

DIFFUSION = {
    "n_obs_steps": 2,
    "horizon": 8,
    "n_action_steps": 4,
    "pretrained_backbone_weights": None,
    "use_group_norm": True,
    "spatial_softmax_num_keypoints": 4,
    "down_dims": (16, 32),
    "n_groups": 4,
    "kernel_size": 3,
    "diffusion_step_embed_dim": 16,
    "num_train_timesteps": 10,
    "prediction_type": "sample",  # of random weights: actions that are not clipped
    "use_separate_rgb_encoder_per_camera": False,
}
ACT = {
    "chunk_size": 8,
    "n_action_steps": 8,
    "pretrained_backbone_weights": None,
    "dim_model": 32,
    "n_heads": 4,
    "dim_feedforward": 64,
    "n_encoder_layers": 1,
    "n_vae_encoder_layers": 1,
    "latent_dim": 8,
}
VQBET = {
    "n_obs_steps": 3,
    "action_chunk_size": 4,
    "n_action_pred_token": 2,
    "pretrained_backbone_weights": None,
    "use_group_norm": True,
    "spatial_softmax_num_keypoints": 4,
    "crop_shape": (28, 28),
    "vqvae_n_embed": 4,
    "vqvae_embedding_dim": 16,
    "vqvae_enc_hidden_dim": 16,
    "gpt_block_size": 50,
    "gpt_input_dim": 32,
    "gpt_output_dim": 32,
    "gpt_n_layer": 1,
    "gpt_n_head": 2,
    "gpt_hidden_dim": 32,
}
TINY: dict[str, dict[str, Any]] = {"act": ACT, "diffusion": DIFFUSION, "vqbet": VQBET}


def save(
    folder: Path,
    kind: str,
    *,
    images: tuple[str, ...] = (FRONT, WRIST),
    size: int = 32,
    state: int = STATE,
    action: int = ACTION,
    renamed: dict[str, str] | None = None,
    **settings: Any,
) -> Path:
    """A checkpoint of `kind`, as `lerobot-train` leaves one, in `folder`; `renamed` is its preprocessor's map."""
    import torch
    from lerobot.configs import FeatureType, PolicyFeature
    from lerobot.policies import make_policy_config, make_pre_post_processors
    from lerobot.policies.factory import get_policy_class

    torch.manual_seed(0)
    pictures = {key: PolicyFeature(FeatureType.VISUAL, (3, size, size)) for key in images}
    config = make_policy_config(
        kind,
        device="cpu",
        input_features={**pictures, "observation.state": PolicyFeature(FeatureType.STATE, (state,))},
        output_features={"action": PolicyFeature(FeatureType.ACTION, (action,))},
        **{**TINY.get(kind, {}), **settings},
    )
    policy = get_policy_class(kind)(config)
    with torch.no_grad():
        for weight in policy.parameters():  # far from zero, so that every input shows in the actions
            weight.add_(0.01 * torch.randn_like(weight))
    if kind == "vqbet":  # as after the first part of its training
        policy.vqbet.action_head.vqvae_model.discretized.fill_(True)
    processors = make_pre_post_processors(config, dataset_stats=statistics(images, state, action))
    for step in processors[0].steps:
        if hasattr(step, "rename_map"):
            step.rename_map = renamed or {}
    policy.save_pretrained(folder)
    for processor in processors:
        processor.save_pretrained(folder)
    return folder


def statistics(images: tuple[str, ...], state: int, action: int) -> dict[str, dict[str, Any]]:
    """Of a made-up data set: every normalisation does something, and something else in each dimension."""
    import torch

    def of(shape: tuple[int, ...], offset: float) -> dict[str, Any]:
        ramp = torch.arange(1.0, shape[0] + 1).reshape(shape) / shape[0]
        low, high = offset - ramp, offset + 2 * ramp
        quantiles = {"q01": low, "q10": low / 2, "q90": high / 2, "q99": high}
        return {"mean": offset + ramp / 5, "std": 0.5 + ramp / 3, "min": low, "max": high, **quantiles}

    pictures = {key: of((3, 1, 1), 0.4) for key in images}
    return {**pictures, "observation.state": of((state,), 0.1), "action": of((action,), 0.2)}
