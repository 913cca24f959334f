"""Model families of transformers and timm, each built small from its config with random weights."""

from __future__ import annotations

import collections
import contextlib
import copy
import inspect
from collections.abc import Iterator, Sequence
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
    "num_queries": 4, "num_query_tokens": 4, "depth": 2, "num_blocks": 2, "out_hidden_size": 32,
    "encoder_hidden_size": 32, "decoder_hidden_size": 32, "num_encoder_layers": 2,
    "num_attention_layers": 2, "mamba_d_state": 8, "mamba_expand": 2, "context_length": 32,
    "shared_expert_intermediate_size": 16, "adapter_intermediate_dim": 32, "num_latents": 4,
}  # fmt: skip
# When the first try does not build: as many key/value heads as heads; then only fewer layers.
_FEWER_LAYERS = {
    name: size
    for name, size in _SIZES.items()
    if "layer" in name or "token_id" in name or name in ("vocab_size", "depth", "num_blocks")
}
_VARIANTS: tuple[dict[str, int], ...] = (
    _SIZES,
    {**_SIZES, "num_key_value_heads": 4, "rotary_dim": 8, "head_dim": 16},
    _FEWER_LAYERS,
)
# Lists of sizes, one item a stage, and what each item is brought down to.
_STAGES = {"depths": 1, "hidden_sizes": 16, "embed_dims": 16, "encoder_hidden_sizes": 16}
_LARGEST = 60_000_000  # parameters; larger models would take too long


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
    for name, size in _STAGES.items():
        stages = getattr(config, name, None)
        if sizes is not _FEWER_LAYERS and isinstance(stages, (list, tuple)):
            with contextlib.suppress(AttributeError, TypeError):
                setattr(config, name, type(stages)(size for _ in stages))
    for name in ("rope_parameters", "rope_scaling"):
        rope = getattr(config, name, None)
        if isinstance(rope, dict) and "head_dim" in sizes:
            half = sizes["head_dim"] // 2
            rope["mrope_section"] = [half - 2 * (half // 4), half // 4, half // 4]
    for part in list(vars(config).values()):
        if hasattr(part, "to_dict") and hasattr(part, "model_type"):
            shrink(part, sizes)


def _config(family: str, sizes: dict[str, int]) -> Any:
    """The default config, shrunk."""
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING

    config_class = CONFIG_MAPPING[family]
    config = config_class()
    shrink(config, sizes)
    return config


def _made(config: Any) -> Any:
    """The model of a config. Whether it is small is found out without its memory, where it can be
    built so."""
    from transformers import AutoModel

    outline = None
    with contextlib.suppress(Exception), torch.device("meta"):
        outline = AutoModel.from_config(copy.deepcopy(config))
    if outline is not None:
        _refuse_large(outline, _LARGEST)
    return AutoModel.from_config(config)


class _TooLarge(Exception):
    """A model that is large even with its config shrunk."""


def _refuse_large(model: Any, most: int) -> None:
    count = sum(p.numel() for p in model.parameters())
    if count > most:
        raise _TooLarge(f"{count // 1_000_000} million parameters, even shrunk")


def _inputs(model: Any, names: Sequence[str], all_of_them: bool) -> dict[str, Any]:
    """Inputs for the parameters `names` of a model's forward: its main ones, or all we know."""
    config = model.config
    text = getattr(config, "text_config", None) or config
    vision = getattr(config, "vision_config", None) or config
    size = getattr(vision, "image_size", 32)
    height, width = size if isinstance(size, (list, tuple)) else (size, size)
    channels = getattr(vision, "num_channels", getattr(vision, "in_channels", 3))
    ids = torch.randint(3, min(getattr(text, "vocab_size", 99), 99), (2, 8))
    bins = getattr(config, "num_mel_bins", 80)
    inputs: dict[str, Any] = {}
    if "input_ids" in names:
        inputs["input_ids"] = ids
    if "decoder_input_ids" in names:
        inputs["decoder_input_ids"] = ids[:, :5]
    main = model.main_input_name
    if "pixel_values" in names and (main == "pixel_values" or "input_ids" not in names):
        inputs["pixel_values"] = torch.randn(2, channels, height, width)
    if main == "input_values":
        inputs["input_values"] = torch.randn(2, 3200)
    if main == "input_features":
        inputs["input_features"] = torch.randn(2, bins, 128)
    if not all_of_them:
        return inputs
    patch = getattr(vision, "patch_size", 8)
    patch = patch if isinstance(patch, int) else 8
    area = channels * patch * patch
    past = getattr(config, "context_length", 32) + max(
        getattr(config, "lags_sequence", None) or [0]
    )
    others = {
        "pixel_values": torch.randn(2, channels, height, width),
        "bbox": torch.zeros(2, 8, 4, dtype=torch.long),
        "past_values": torch.randn(2, past),
        "past_time_features": torch.randn(2, past, getattr(config, "num_time_features", 0)),
        "past_observed_mask": torch.ones(2, past),
    }
    if "spatial_shapes" in names:  # images of several sizes, in patches
        others["pixel_values"] = torch.randn(2, 16, area)
        others["pixel_attention_mask"] = torch.ones(2, 16, dtype=torch.long)
        others["spatial_shapes"] = torch.tensor([[4, 4], [4, 4]])
    if "grid_thw" in names:
        others["hidden_states"] = torch.randn(16, area * getattr(vision, "temporal_patch_size", 1))
        others["grid_thw"] = torch.tensor([[1, 4, 4]])
    return inputs | {name: value for name, value in others.items() if name in names}


def transformers_models(family: str, sizes: dict[str, int]) -> Iterator[tuple[Any, dict[str, Any]]]:
    """A tiny model of a family, with one set of inputs after the other that may fit it."""
    model = _made(_config(family, sizes))
    parameters = inspect.signature(model.forward).parameters
    wanted = [
        name for name, parameter in parameters.items() if parameter.default is parameter.empty
    ]
    main, everything = (_inputs(model, list(parameters), flag) for flag in (False, True))
    if set(wanted) - {"args", "kwargs"} <= set(main):
        yield model, main
    yield model, everything
    if "input_values" in main:
        length = getattr(model.config, "max_length", 1024)
        yield model, {**main, "input_values": torch.randn(2, 1, 3200)}
        yield model, {**main, "input_values": torch.randn(2, length, 128)}
    if "use_cache" in parameters and "input_ids" in main:
        yield model, {**main, "use_cache": False}
    if "input_features" in main:
        yield model, {**main, "input_features": main["input_features"].transpose(1, 2)}


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
            for model, inputs in transformers_models(family, sizes):
                try:
                    return _run_eager(model, inputs)
                except Exception as error:
                    first = first or error
        except Exception as error:
            first = first or error
    assert first is not None
    raise first


def _run_eager(model: Any, inputs: dict[str, Any]) -> tuple[Any, dict[str, Any], Any]:
    """The second call's output: some models settle their buffers in the first."""
    _refuse_large(model, 150_000_000)
    model.eval()
    eager = copy.deepcopy(model)
    with torch.no_grad():
        eager(**inputs)
    torch.manual_seed(1)
    with torch.no_grad():
        expected = eager(**inputs)
    return model, inputs, expected
