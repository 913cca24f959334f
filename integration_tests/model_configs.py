"""Configs of transformers' model families, brought down to the least size that builds."""

from __future__ import annotations

import contextlib
import inspect
from collections.abc import Iterator
from typing import Any

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
    "num_queries": 4, "num_query_tokens": 4, "depth": 2, "num_blocks": 2, "out_hidden_size": 32,
    "encoder_hidden_size": 32, "decoder_hidden_size": 32, "num_encoder_layers": 2,
    "num_attention_layers": 2, "mamba_d_state": 8, "mamba_expand": 2, "context_length": 32,
    "shared_expert_intermediate_size": 16, "adapter_intermediate_dim": 32, "num_latents": 4,
    "entity_vocab_size": 99, "entity_emb_size": 32, "qk_head_dim": 16,
}  # fmt: skip
# When the first try does not build: other relations between sizes; then only fewer layers.
_MORE_HEADS = {
    **_SIZES, "num_key_value_heads": 4, "rotary_dim": 8, "head_dim": 16, "n_groups": 1,
    "mamba_n_heads": 4, "mamba_d_head": 16, "mamba_n_groups": 1,
}  # fmt: skip
_LARGE_TABLES = ("vocab_size", "entity_vocab_size", "num_latents", "d_latents", "hash_vocab_size")
_FEWER_LAYERS = {
    name: _SIZES.get(name, 99)
    for name in (*_SIZES, *_LARGE_TABLES)
    if "layer" in name or "token_id" in name or name in (*_LARGE_TABLES, "depth", "num_blocks")
}
# Few layers of a width that most numbers of heads divide.
_NARROW = {
    **_FEWER_LAYERS,
    **dict.fromkeys(
        ("hidden_size", "d_model", "n_embd", "dim", "embed_dim", "qkv_hidden_size"), 192
    ),
    **dict.fromkeys(("intermediate_size", "d_ff", "ffn_dim"), 64),
}
# Lists of sizes, one item a stage, and what each item is brought down to.
_STAGES = {"depths": 1, "hidden_sizes": 16, "embed_dims": 16, "encoder_hidden_sizes": 16}
# What some families leave to each published model, and their forward cannot do without.
_UNSET: dict[str, Any] = {
    "vocab_size": 99, "num_key_value_heads": 4, "prediction_length": 8, "n_routed_experts": 4,
    "n_shared_experts": 1, "head_dim": 8, "num_experts": 4,
    "top_k_experts": 2, "num_experts_per_tok": 2, "rope_theta": 10000.0,
    "layer_types": ["full_attention", "full_attention"],
    "vocabulary_map": {"<image>": 4, "IMGIMGA": 5, "<|image token|>": 4},
}  # fmt: skip


def _read(config: Any, name: str) -> Any:
    """A field of a config; None where it has none or has one for each layer."""
    try:
        return getattr(config, name, None)
    except RuntimeError:  # transformers' answer where the layers differ in it
        return None


def parts_of(config: Any) -> dict[str, Any]:
    """The configs inside a config, by the field that holds them."""
    return {
        name: part
        for name, part in vars(config).items()
        if hasattr(part, "to_dict") and hasattr(part, "model_type")
    }


def find(config: Any, name: str, default: Any) -> Any:
    """A field of a config or of the first of its parts that has it."""
    value = _read(config, name)
    if value is not None:
        return value
    for part in parts_of(config).values():
        value = find(part, name, None)
        if value is not None:
            return value
    return default


def _too_large(config: Any, sizes: dict[str, int]) -> dict[str, int]:
    """The fields of a config that are larger than they need to be, and what they become."""
    return {
        name: size
        for name, size in sizes.items()
        if type(now := _read(config, name)) is int and (now > size or name.endswith("_token_id"))
    }


def shrink(config: Any, sizes: dict[str, int]) -> None:
    """Bring a config's sizes down, in place, those of its parts too."""
    for name, size in _too_large(config, sizes).items():
        with contextlib.suppress(AttributeError, ValueError, NotImplementedError):
            setattr(config, name, size)
    for name, value in _UNSET.items():
        if hasattr(type(config), name) and name in vars(config) and vars(config)[name] is None:
            with contextlib.suppress(AttributeError, ValueError):
                setattr(config, name, value)
    _settle(config, sizes)
    for part in parts_of(config).values():
        shrink(part, sizes)


def _settle(config: Any, sizes: dict[str, int]) -> None:
    """Bring what depends on the sizes in line with them: kinds of layers, stages, rotary parts."""
    for name in ("layer_types", "mlp_layer_types"):
        kinds = _read(config, name)
        if isinstance(kinds, list):
            with contextlib.suppress(AttributeError):
                setattr(config, name, kinds[: getattr(config, "num_hidden_layers", 2)])
    for name, size in _STAGES.items():
        stages = _read(config, name)
        if "hidden_size" in sizes and isinstance(stages, (list, tuple)):
            with contextlib.suppress(AttributeError, TypeError):
                setattr(config, name, type(stages)(size for _ in stages))
    for name in ("rope_parameters", "rope_scaling"):
        rope = _read(config, name)
        if isinstance(rope, dict):
            of_kinds = [kind for kind in rope.values() if isinstance(kind, dict)]
            for table in of_kinds or [rope]:
                _settle_rotary(config, table, sizes)


def _settle_rotary(config: Any, rope: dict[str, Any], sizes: dict[str, int]) -> None:
    if "rope_theta" in rope and rope["rope_theta"] is None:
        rope["rope_theta"] = 10000.0
    if "head_dim" in sizes:
        width = _read(config, "head_dim") or sizes["head_dim"]
        half = int(width * rope.get("partial_rotary_factor", 1.0)) // 2
        rope["mrope_section"] = [half - 2 * (half // 4), half // 4, half // 4]


def _constructed(config: Any, sizes: dict[str, int]) -> Any:
    """A config made anew with smaller sizes, so that what its class derives from them follows."""
    fields = inspect.signature(type(config).__init__).parameters
    changes: dict[str, Any] = {
        name: size for name, size in _too_large(config, sizes).items() if name in fields
    }
    changes |= {
        name: value
        for name, value in _UNSET.items()
        if name in fields and name in vars(config) and vars(config)[name] is None
    }
    for name, part in parts_of(config).items():
        if name in fields:
            changes[name] = _constructed(part, sizes)
    if "num_hidden_layers" in changes:
        for name in ("layer_types", "mlp_layer_types"):
            kinds = _read(config, name)
            if name in fields and isinstance(kinds, list):
                changes[name] = list(dict.fromkeys(kinds))[: changes["num_hidden_layers"]]
                missing = changes["num_hidden_layers"] - len(changes[name])
                changes[name] += [kinds[-1]] * missing
    made = type(config)(**changes)
    _settle(made, sizes)
    return made


def tiny_configs(family: str) -> Iterator[Any]:
    """Configs of a family, the smallest first, each of which may or may not build."""
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING

    config_class = CONFIG_MAPPING[family]
    first: Exception | None = None
    for sizes in (_SIZES, _MORE_HEADS, _NARROW, _FEWER_LAYERS):
        config = config_class()
        shrink(config, sizes)
        yield config
        try:
            made = _constructed(config_class(), sizes)
        except Exception as error:
            first = first or error
        else:
            yield made
    if first is not None:
        raise first
