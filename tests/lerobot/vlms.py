"""Small vision-language models with random weights, made on the spot: nothing comes from a hub."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from checkpoints import save

WORDS = ["push", "the", "point", "about", "Task", "State", "Action", ":", ",", ";", *map(str, range(256))]
MARKS = {
    "fake_image_token": "<fake_token_around_image>",
    "global_image_token": "<global-img>",
    "image_token": "<image>",
    "end_of_utterance_token": "<end_of_utterance>",
}

DIT = {
    "n_obs_steps": 2,
    "horizon": 8,
    "n_action_steps": 4,
    "num_train_timesteps": 6,
    "num_integration_steps": 4,
    "prediction_type": "sample",
    "hidden_dim": 32,
    "num_layers": 1,
    "num_heads": 2,
    "timestep_embed_dim": 16,
    "image_crop_shape": (28, 28),
    "tokenizer_max_length": 16,
}
SMOLVLA = {
    "chunk_size": 8,
    "n_action_steps": 4,
    "max_state_dim": 6,
    "max_action_dim": 5,
    "resize_imgs_with_padding": (32, 32),
    "num_steps": 3,
    "num_vlm_layers": 2,
    "tokenizer_max_length": 16,
}
PI = {
    "chunk_size": 8,
    "n_action_steps": 4,
    "max_state_dim": 6,
    "max_action_dim": 5,
    "image_resolution": (28, 28),
    "num_inference_steps": 3,
    "tokenizer_max_length": 32,
}


def tokenizer(**marks: str) -> Any:
    """Words, and a token for every other one."""
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    words = ["<pad>", "<unk>", "<s>", "</s>", *marks.values(), *WORDS]
    vocabulary = {word: index for index, word in enumerate(words)}
    made = Tokenizer(models.WordLevel(vocabulary, unk_token="<unk>"))
    made.pre_tokenizer = pre_tokenizers.Whitespace()
    return PreTrainedTokenizerFast(
        tokenizer_object=made,
        pad_token="<pad>",
        unk_token="<unk>",
        bos_token="<s>",
        eos_token="</s>",
        extra_special_tokens=marks,
    )


def save_multi_task_dit(folder: Path, **settings: Any) -> Path:
    """A multi-task DiT over a CLIP of its own."""
    from transformers import CLIPConfig, CLIPModel

    clip = folder / "clip"
    size = {"hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2}
    config = CLIPConfig(
        text_config={**size, "vocab_size": 512, "max_position_embeddings": 16, "eos_token_id": 3},
        vision_config={**size, "image_size": 28, "patch_size": 14},
        projection_dim=16,
    )
    CLIPModel(config).save_pretrained(clip)
    tokenizer().save_pretrained(clip)
    names = {"vision_encoder_name": str(clip), "text_encoder_name": str(clip)}
    return save(folder / "policy", "multi_task_dit", **{**DIT, **names, **settings})


def save_smolvla(folder: Path, **settings: Any) -> Path:
    """SmolVLA over a SmolVLM of its own."""
    from transformers import SmolVLMConfig, SmolVLMImageProcessor, SmolVLMProcessor
    from transformers.models.smolvlm.video_processing_smolvlm import SmolVLMVideoProcessor

    vlm = folder / "vlm"
    size = {"hidden_size": 32, "intermediate_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2}
    config = SmolVLMConfig(
        text_config={
            **size,
            "model_type": "llama",
            "head_dim": 16,
            "num_key_value_heads": 1,
            "vocab_size": 512,
            "pad_token_id": 0,
        },
        vision_config={**size, "image_size": 32, "patch_size": 8},
        scale_factor=2,
        pad_token_id=0,
    )
    config.save_pretrained(vlm)
    marked = tokenizer(**MARKS)
    SmolVLMProcessor(SmolVLMImageProcessor(), marked, SmolVLMVideoProcessor()).save_pretrained(vlm)
    return save(folder / "policy", "smolvla", vlm_model_name=str(vlm), **{**SMOLVLA, **settings})


def save_pi(folder: Path, kind: str, monkeypatch: pytest.MonkeyPatch, **settings: Any) -> Path:
    """pi0 or pi0.5 over a PaliGemma of its own: LeRobot fixes its sizes, so that its classes are given others here."""
    import importlib

    from lerobot.processor import tokenizer_processor

    module = importlib.import_module(f"lerobot.policies.{kind}.modeling_{kind}")
    gemma = module.GemmaConfig(width=16, depth=2, mlp_dim=32, num_heads=2, num_kv_heads=1, head_dim=8)
    monkeypatch.setattr(module, "get_gemma_config", lambda _: gemma)
    for name in ("PaliGemmaForConditionalGenerationWithPiGemma", "PiGemmaForCausalLM"):
        monkeypatch.setattr(module, name, _shrunk(getattr(module, name)))
    words = folder / "words"
    tokenizer().save_pretrained(words)
    auto = tokenizer_processor.AutoTokenizer
    with (
        monkeypatch.context() as patch
    ):  # the processor names PaliGemma's tokenizer: the saved one names ours
        patch.setattr(tokenizer_processor.AutoTokenizer, "from_pretrained", lambda _: tokenizer())
        saved = save(folder / "policy", kind, **{**PI, **settings})
    assert tokenizer_processor.AutoTokenizer is auto
    steps = json.loads((saved / "policy_preprocessor.json").read_text())
    for step in steps["steps"]:
        if step.get("registry_name") == "tokenizer_processor":
            step["config"]["tokenizer_name"] = str(words)
    (saved / "policy_preprocessor.json").write_text(json.dumps(steps))
    return saved


def _shrunk(model: Callable[..., Any]) -> Callable[..., Any]:
    def made(config: Any) -> Any:
        text = getattr(config, "text_config", config)
        text.vocab_size = 512
        vision = getattr(config, "vision_config", None)
        if vision is not None:
            config.image_token_index = config._vocab_size = 511
            vision.hidden_size, vision.intermediate_size, vision.num_hidden_layers = 16, 32, 1
            vision.num_attention_heads, vision.projection_dim = 2, text.hidden_size
            config.projection_dim = text.hidden_size
        return model(config=config)

    return made
