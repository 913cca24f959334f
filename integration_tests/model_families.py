"""Model families of transformers and timm, each built small from its config with random weights."""

from __future__ import annotations

import collections
import contextlib
import copy
import inspect
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from model_configs import find, tiny_configs

_LARGEST = 90_000_000  # parameters; larger models would take too long


class TooLong(BaseException):
    """A family's time is over."""


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


def _image_size(config: Any) -> tuple[int, int]:
    size = find(config, "image_size", 32)
    if isinstance(size, dict):
        size = tuple(size.values())
    size = size[-2:] if isinstance(size, (list, tuple)) else (size, size)
    return int(size[0]), int(size[-1])


def _main_inputs(model: Any, names: Sequence[str]) -> dict[str, Any]:
    """What a model is usually given."""
    config = model.config
    ids = torch.randint(3, max(4, min(find(config, "vocab_size", 99), 99)), (2, 8))
    channels = find(config, "num_channels", find(config, "in_channels", 3))
    inputs: dict[str, Any] = {}
    if "input_ids" in names:
        inputs["input_ids"] = ids
    if "decoder_input_ids" in names:
        inputs["decoder_input_ids"] = ids[:, :5]
    main = model.main_input_name
    if "pixel_values" in names and (main == "pixel_values" or "input_ids" not in names):
        inputs["pixel_values"] = torch.randn(2, channels, *_image_size(config))
    if main == "input_values":
        inputs["input_values"] = torch.randn(2, 3200)
    if main == "input_features":
        inputs["input_features"] = torch.randn(2, find(config, "num_mel_bins", 80), 128)
    return inputs


def _further_inputs(model: Any, names: Sequence[str]) -> dict[str, Any]:
    """All that we know how to make, by the parameter's name."""
    config = model.config
    channels = find(config, "num_channels", find(config, "in_channels", 3))
    patch = find(config, "patch_size", 8)
    patch = patch if isinstance(patch, int) else 8
    frames = find(config, "temporal_patch_size", 1)
    area = channels * patch * patch
    lags = find(config, "lags_sequence", [0])
    past = find(config, "context_length", 32) + max(lags)
    ahead = find(config, "prediction_length", 8)
    times = find(config, "num_time_features", 0)
    several = find(config, "num_input_channels", 0)
    hidden = find(config, "hidden_size", 32)
    bins = find(config, "num_mel_bins", 80)
    height, width = _image_size(config)
    ids = torch.randint(3, max(4, min(find(config, "vocab_size", 99), 99)), (2, 8))
    others: dict[str, Any] = {
        "pixel_values": torch.randn(2, channels, height, width),
        "pixel_values_videos": torch.randn(2, 4, channels, height, width),
        "bbox": torch.zeros(2, 8, 4, dtype=torch.long),
        "past_values": torch.randn(2, past, *([several] if several else [])),
        "past_time_features": torch.randn(2, past, times),
        "past_observed_mask": torch.ones(2, past),
        "future_values": torch.randn(2, ahead),
        "future_time_features": torch.randn(2, ahead, times),
        "input_features": torch.randn(2, bins, 128),
        "input_features_mask": torch.ones(2, 128, dtype=torch.bool),
        "input_values": torch.randn(2, 1, 3200),
        "audio_mel": torch.randn(2, 128, find(config, "input_feat_size", bins)),
        "audio_mel_mask": torch.zeros(2, 128, dtype=torch.bool),
        "inputs_embeds": torch.randn(2, 8, hidden),
        "query_embeds": torch.randn(2, 4, hidden),
        "noise_embeds": torch.randn(2, 4, hidden),
        "context_hidden_states": torch.randn(2, 4, hidden),
        "action_embeds": torch.randn(2, 4, hidden),
        "encoder_hidden_states": torch.randn(2, 4, find(config, "encoder_hidden_size", hidden)),
        "qformer_input_ids": ids,
        "classes_input_ids": ids,
        "classes_attention_mask": torch.ones_like(ids),
        "tasks_input_ids": ids,
        "tasks_attention_mask": torch.ones_like(ids),
        "classes_structure": torch.tensor([1, 1]),
        "task_inputs": torch.randint(3, 99, (2, find(config, "task_seq_len", 8))),
        "visual_feats": torch.randn(2, 4, find(config, "visual_feat_dim", 32)),
        "visual_pos": torch.rand(2, 4, 4),
        "is_longer": torch.zeros(2, 1, dtype=torch.bool),
        "image_embeds": torch.randn(2, 4, hidden),
        "image_embeds_position_mask": torch.arange(8).expand(2, 8) < 4,
        "latents": torch.randn(2, find(config, "hidden_size", 32), 8),
        "input": ids,
        "inputs": torch.randn(2, 16, find(config, "d_model", 32)),
        "states": torch.randn(2, 4, find(config, "state_dim", 17)),
        "actions": torch.randn(2, 4, find(config, "act_dim", 4)),
        "rewards": torch.randn(2, 4, 1),
        "returns_to_go": torch.randn(2, 4, 1),
        "timesteps": torch.arange(4).expand(2, 4),
        "merge_sizes": torch.tensor([1]),
        "target_sizes": torch.tensor([[4, 4], [4, 4]]),
        "pixel_position_ids": torch.cartesian_prod(torch.arange(4), torch.arange(4)).expand(
            2, 16, 2
        ),
    }
    if "hidden_states" in names and "grid_thw" not in names:
        others["hidden_states"] = torch.randn(2, 1, 3200)
    if "spatial_shapes" in names:  # images of several sizes, in patches
        others["pixel_values"] = torch.randn(2, 16, area)
        others["pixel_attention_mask"] = torch.ones(2, 16, dtype=torch.long)
        others["spatial_shapes"] = torch.tensor([[4, 4], [4, 4]])
    if "pixel_position_ids" in names:
        others["pixel_values"] = torch.rand(2, 16, area)
    grid = next((name for name in ("grid_thw", "image_grid_thw") if name in names), None)
    if grid is not None:
        others["hidden_states"] = torch.randn(16, area * frames)
        others["pixel_values"] = torch.randn(16, area * frames)
        others[grid] = torch.tensor([[1, 4, 4]])
    return {name: value for name, value in others.items() if name in names}


# What a forward may do without, and is given only where nothing else helps.
_LAST = {"inputs_embeds", "query_embeds", "image_embeds", "latents", "input", "future_values"}


def _input_sets(model: Any) -> Iterator[dict[str, Any]]:
    """One set of inputs after the other that may fit a model."""
    parameters = inspect.signature(model.forward).parameters
    names = list(parameters)
    wanted = {
        name for name, parameter in parameters.items() if parameter.default is parameter.empty
    } - {"args", "kwargs"}
    main = _main_inputs(model, names)
    further = _further_inputs(model, names)
    needed = main | {name: further[name] for name in wanted if name in further}
    usual = {name: value for name, value in further.items() if name not in _LAST}
    if wanted <= set(main):
        yield main
    if wanted <= set(needed):
        yield needed
        if "pixel_values" in main and "pixel_values" in further:
            yield needed | {"pixel_values": further["pixel_values"]}
    yield usual | main
    yield main | usual
    if not {"input_ids", "pixel_values"} & set(main):
        yield main | further
    if "input_values" in main:
        length = getattr(model.config, "max_length", 1024)
        for shape in ((2, 1, 3200), (2, length, 128), (2, 1, 3840)):
            yield {**needed, "input_values": torch.randn(shape)}
    if "use_cache" in parameters and "input_ids" in main:
        yield {**needed, "use_cache": False}
    if "input_features" in main:
        for features in (main, further):
            yield {**needed, "input_features": features["input_features"].transpose(1, 2)}
    config = model.config
    images = further.get("pixel_values")
    if images is not None and images.dim() == 4:
        for images_each in {find(config, "num_frames", 2), 2}:  # videos, pairs
            several = images.unsqueeze(1).repeat(1, images_each, 1, 1, 1)
            yield {**needed, "pixel_values": several}
        for times in (2, 4, 7):
            yield {**needed, "pixel_values": images.repeat(1, 1, times, times)}
    if "encoder_hidden_states" in further:
        yield {**needed, "encoder_hidden_states": further["encoder_hidden_states"]}


def _widened(model: Any, inputs: dict[str, Any]) -> dict[str, Any] | None:
    """The inputs with as many features or channels as the first layer takes that sees one of them;
    None where that is so already."""
    seen: list[tuple[Any, Any]] = []

    def note(layer: Any, arguments: tuple[Any, ...]) -> None:
        if arguments and isinstance(arguments[0], torch.Tensor):
            seen.append((layer, arguments[0]))

    kinds = (torch.nn.Linear, torch.nn.LayerNorm, torch.nn.Conv1d, torch.nn.Conv2d, torch.nn.Conv3d)
    hooks = [
        layer.register_forward_pre_hook(note)
        for layer in model.modules()
        if isinstance(layer, kinds)
    ]
    with contextlib.suppress(Exception), torch.no_grad():
        model(**inputs)
    for hook in hooks:
        hook.remove()
    for layer, given in seen:
        if isinstance(layer, torch.nn.Linear):
            axis, needs = -1, layer.in_features
        elif isinstance(layer, torch.nn.LayerNorm):
            axis, needs = -1, layer.normalized_shape[-1]
        else:
            axis, needs = 1, layer.in_channels
        if given.dim() < 2 or given.shape[axis] == needs:
            continue
        for name, value in inputs.items():
            if (
                isinstance(value, torch.Tensor)
                and value.is_floating_point()
                and value.dim() > 1
                and value.shape[axis] == given.shape[axis]
            ):
                shape = list(value.shape)
                shape[axis] = needs
                return {**inputs, name: torch.randn(shape)}
        return None
    return None


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
    for config in tiny_configs(family):
        try:
            model = _made(config)
        except Exception as error:
            first = first or error
            continue
        for inputs in _input_sets(model):
            candidate: dict[str, Any] | None = inputs
            while candidate is not None:
                try:
                    return _run_eager(model, candidate)
                except Exception as error:
                    first = first or error
                    candidate = _widened(model, candidate)
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
