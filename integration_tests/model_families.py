"""Model families of transformers and timm, each built small from its config with random weights."""

from __future__ import annotations

import collections
import contextlib
import copy
import inspect
from collections.abc import Iterator
from typing import Any

import torch

# Fields of transformers' configs, by name, at the least size that most models accept.
_SIZES: dict[str, int] = {
    "vocab_size": 99, "hidden_size": 32, "d_model": 32, "n_embd": 32, "dim": 32, "emb_dim": 32,
    "embedding_size": 32, "embed_dim": 32, "word_embed_proj_dim": 32, "intermediate_size": 64,
    "ffn_dim": 64, "d_ff": 64, "d_inner": 64, "n_inner": 64, "hidden_dim": 64,
    "encoder_ffn_dim": 64, "decoder_ffn_dim": 64, "num_hidden_layers": 2, "n_layer": 2,
    "n_layers": 2, "num_layers": 2, "encoder_layers": 2, "decoder_layers": 2,
    "num_decoder_layers": 2, "num_attention_heads": 4, "n_head": 4, "n_heads": 4, "num_heads": 4,
    "encoder_attention_heads": 4, "decoder_attention_heads": 4, "num_key_value_heads": 2,
    "head_dim": 8, "d_kv": 8, "max_position_embeddings": 64, "n_positions": 64, "n_ctx": 64,
    "max_source_positions": 64, "max_target_positions": 64, "image_size": 32, "patch_size": 8,
    "moe_intermediate_size": 16, "num_experts": 4, "num_local_experts": 4, "n_routed_experts": 4,
    "num_experts_per_tok": 2, "n_group": 1, "topk_group": 1, "bos_token_id": 1, "eos_token_id": 2,
    "pad_token_id": 0, "decoder_start_token_id": 1, "type_vocab_size": 2, "projection_dim": 16,
    "q_lora_rank": 16, "kv_lora_rank": 16, "qk_rope_head_dim": 8, "qk_nope_head_dim": 8,
    "v_head_dim": 8, "state_size": 8, "time_step_rank": 4, "attention_hidden_size": 32,
    "sliding_window": 16, "num_mel_bins": 16, "block_size": 8, "num_random_blocks": 1,
}  # fmt: skip
# When the first try does not build: as many key/value heads as heads; then only fewer layers.
_VARIANTS: tuple[dict[str, int], ...] = (
    _SIZES,
    {**_SIZES, "num_key_value_heads": 4, "rotary_dim": 8},
    {name: size for name, size in _SIZES.items() if "layer" in name or "token_id" in name},
)
_PARTS = ("text_config", "vision_config", "audio_config", "encoder", "decoder")


class TooLong(BaseException):
    """A family's time is over."""


def shrink(config: Any, sizes: dict[str, int]) -> None:
    """Bring a config's sizes down, in place, those of its parts too."""
    for name, size in sizes.items():
        now = getattr(config, name, None)
        if type(now) is int and (now > size or name.endswith("_token_id")):
            try:
                setattr(config, name, size)
            except (AttributeError, ValueError, NotImplementedError):
                continue
    for name in ("layer_types", "mlp_layer_types"):
        kinds = getattr(config, name, None)
        if isinstance(kinds, list):
            with contextlib.suppress(AttributeError):
                setattr(config, name, kinds[: getattr(config, "num_hidden_layers", 2)])
    for name in _PARTS:
        part = getattr(config, name, None)
        if hasattr(part, "to_dict"):
            shrink(part, sizes)


def _config(family: str, sizes: dict[str, int]) -> Any:
    """The default config, shrunk."""
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING

    config_class = CONFIG_MAPPING[family]
    config = config_class()
    shrink(config, sizes)
    return config


def transformers_model(family: str, sizes: dict[str, int]) -> tuple[Any, dict[str, Any]]:
    """A tiny model of a family with inputs that fit its main input."""
    from transformers import AutoModel

    model = AutoModel.from_config(_config(family, sizes))
    config = model.config
    text = getattr(config, "text_config", None) or config
    vocabulary = getattr(text, "vocab_size", 99)
    ids = torch.randint(3, min(vocabulary, 99), (2, 8))
    names = inspect.signature(model.forward).parameters
    inputs: dict[str, Any] = {}
    vision = getattr(config, "vision_config", None) or config
    size = getattr(vision, "image_size", 32)
    height, width = size if isinstance(size, (list, tuple)) else (size, size)
    channels = getattr(vision, "num_channels", 3)
    if "input_ids" in names:
        inputs["input_ids"] = ids
    if "decoder_input_ids" in names:
        inputs["decoder_input_ids"] = ids[:, :5]
    if "pixel_values" in names and (
        model.main_input_name == "pixel_values" or "input_ids" not in names
        or names["pixel_values"].default is inspect.Parameter.empty
        or family in ("clip", "siglip", "altclip", "blip", "chinese_clip", "clipseg", "groupvit")
    ):  # fmt: skip
        inputs["pixel_values"] = torch.randn(2, channels, height, width)
    if model.main_input_name == "input_values":
        inputs["input_values"] = torch.randn(2, 3200)
    if model.main_input_name == "input_features":
        bins = getattr(config, "num_mel_bins", 80)
        inputs["input_features"] = torch.randn(2, bins, 128)
    return model, inputs


def timm_families() -> list[str]:
    """One model of each timm module: the one with the shortest name."""
    import timm

    names: list[str] = []
    for module in timm.list_modules():
        models = timm.list_models(module=module)
        if models:
            names.append(min(models, key=lambda name: (_weight(name), len(name), name)))
    return names


def _weight(name: str) -> int:
    """Small variants first."""
    small = ("tiny", "nano", "atto", "femto", "pico", "small", "_s", "xxs", "mini", "18", "_050")
    return 0 if any(part in name for part in small) else 1


def timm_model(name: str) -> tuple[Any, dict[str, Any]]:
    """A timm model at the least image size it can be built for, cut to few blocks if it can."""
    import timm

    last: Exception | None = None
    for extra in ({"img_size": 64, "depth": 2}, {"img_size": 64}, {}):
        try:
            model = timm.create_model(name, num_classes=10, **extra)
        except Exception as error:
            last = error
            continue
        size = 64 if "img_size" in extra else model.default_cfg["input_size"][-1]
        if "img_size" not in extra and not model.default_cfg.get("fixed_input_size"):
            size = min(size, 96)
        return model, {"x": torch.randn(1, 3, size, size)}
    assert last is not None
    raise last


def transformers_families() -> list[str]:
    """All families that have a plain model."""
    from transformers.models.auto.modeling_auto import MODEL_MAPPING_NAMES

    return list(MODEL_MAPPING_NAMES)


def leaves(output: Any) -> Iterator[Any]:
    """Tensors of a model's output in order, those in caches too."""
    if isinstance(output, torch.Tensor):
        yield output
    elif isinstance(output, collections.abc.Mapping):
        for item in output.values():
            yield from leaves(item)
    elif isinstance(output, (list, tuple)):
        for item in output:
            yield from leaves(item)
    elif hasattr(output, "self_attention_cache"):
        yield from leaves([output.self_attention_cache, output.cross_attention_cache])
    elif hasattr(output, "layers"):
        for layer in output.layers:
            yield from leaves([getattr(layer, "keys", None), getattr(layer, "values", None)])


def build(suite: str, family: str) -> tuple[Any, dict[str, Any], Any]:
    """A model in evaluation mode, its inputs and eager's output; raises what building raises."""
    if suite == "timm":
        return _run_eager(*timm_model(family))
    first: Exception | None = None
    for sizes in _VARIANTS:
        try:
            return _run_eager(*transformers_model(family, sizes))
        except TooLong:
            raise
        except Exception as error:
            first = first or error
    assert first is not None
    raise first


def _run_eager(model: Any, inputs: dict[str, Any]) -> tuple[Any, dict[str, Any], Any]:
    """The second call's output: some models settle their buffers in the first."""
    if sum(p.numel() for p in model.parameters()) > 150_000_000:
        raise ValueError("too large, even shrunk")
    model.eval()
    eager = copy.deepcopy(model)
    with torch.no_grad():
        eager(**inputs)
    torch.manual_seed(1)
    with torch.no_grad():
        expected = eager(**inputs)
    return model, inputs, expected
