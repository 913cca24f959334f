"""Models for benchmarks and integration tests, built from their configs with random weights.

A case is a model, its inputs and how to make a scalar loss of its output. `small=True` gives the
same architecture at a size fit for tests. transformers and timm are imported only when a case
asks for them.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn


@dataclass(frozen=True)
class Case:
    """A model with keyword inputs. `loss(output)` gives a scalar to call `backward` on."""

    model: nn.Module
    inputs: Mapping[str, Any]
    loss: Callable[[Any], Tensor]

    def tensors_of(self, output: Any) -> list[Tensor]:
        """All floating-point tensors in a model output, in order."""
        leaves, _ = torch.utils._pytree.tree_flatten(_plain(output))
        return [t for t in leaves if isinstance(t, Tensor) and t.is_floating_point()]


Builder = Callable[[bool], Case]


def _plain(output: Any) -> Any:
    """Turn model-output mappings and caches into plain containers of tensors."""
    if isinstance(output, Tensor) or output is None:
        return output
    if isinstance(output, Mapping):
        return {k: _plain(v) for k, v in output.items()}
    if isinstance(output, list | tuple):
        return [_plain(v) for v in output]
    if hasattr(output, "layers"):  # a transformers key/value cache
        return [[getattr(x, "keys", None), getattr(x, "values", None)] for x in output.layers]
    if hasattr(output, "self_attention_cache"):
        return [_plain(output.self_attention_cache), _plain(output.cross_attention_cache)]
    return output


def _mean_square(output: Any) -> Tensor:
    """A loss that reaches each element of the first floating-point output."""
    if isinstance(output, Tensor):
        return output.float().pow(2).mean()
    first: Any = output.get("logits", None) if hasattr(output, "get") else None
    if first is None:
        first = output[0]
    assert isinstance(first, Tensor)
    return first.float().pow(2).mean()


def _own_loss(output: Any) -> Tensor:
    loss = output.loss
    assert isinstance(loss, Tensor)
    return loss


def _ids(batch: int, length: int, vocab: int) -> Tensor:
    return torch.randint(0, vocab, (batch, length))


def bert(small: bool) -> Case:
    """BERT masked LM: 4 layers, hidden 256, batch 8, 128 tokens."""
    from transformers import BertConfig, BertForMaskedLM

    config = BertConfig(
        vocab_size=512 if small else 30522,
        hidden_size=64 if small else 256,
        num_hidden_layers=2 if small else 4,
        num_attention_heads=4,
        intermediate_size=128 if small else 1024,
        hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0,
    )
    batch, length = (2, 16) if small else (8, 128)
    ids = _ids(batch, length, config.vocab_size)
    return Case(BertForMaskedLM(config), {"input_ids": ids, "labels": ids.clone()}, _own_loss)


def _bert_base(batch: int) -> Builder:
    def build(small: bool) -> Case:
        from transformers import BertConfig, BertModel

        if small:
            config = BertConfig(
                vocab_size=256,
                hidden_size=64,
                num_hidden_layers=2,
                num_attention_heads=4,
                intermediate_size=128,
                hidden_dropout_prob=0.0,
                attention_probs_dropout_prob=0.0,
            )
            return Case(BertModel(config), {"input_ids": _ids(2, 16, 256)}, _mean_square)
        config = BertConfig(hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0)
        return Case(BertModel(config), {"input_ids": _ids(batch, 128, 30522)}, _mean_square)

    return build


def gpt2(small: bool) -> Case:
    """GPT-2 small with its language-model loss."""
    from transformers import GPT2Config, GPT2LMHeadModel

    sizes = {"n_embd": 64, "n_layer": 2, "n_head": 4, "vocab_size": 256} if small else {}
    if small:
        sizes |= {"bos_token_id": 1, "eos_token_id": 2}
    config = GPT2Config(resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0, **sizes)
    ids = _ids(2, 16, 256) if small else _ids(8, 512, config.vocab_size)
    inputs = {"input_ids": ids, "labels": ids.clone(), "use_cache": False}
    return Case(GPT2LMHeadModel(config), inputs, _own_loss)


def llama(small: bool) -> Case:
    """A Llama-shaped decoder (grouped-query attention, RMS norm, rotary embedding)."""
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(
        vocab_size=256 if small else 8192,
        bos_token_id=1,
        eos_token_id=2,
        hidden_size=64 if small else 512,
        intermediate_size=128 if small else 1408,
        num_hidden_layers=2 if small else 4,
        num_attention_heads=4 if small else 8,
        num_key_value_heads=2 if small else 4,
        max_position_embeddings=256,
    )
    ids = _ids(2, 16, 256) if small else _ids(4, 128, config.vocab_size)
    inputs = {"input_ids": ids, "labels": ids.clone(), "use_cache": False}
    return Case(LlamaForCausalLM(config), inputs, _own_loss)


def _llama_1b(length: int) -> Builder:
    """A decoder of Llama 3.2 1B's shape, one sequence; the logits of the last token."""

    def build(small: bool) -> Case:
        if small:
            return llama(True)
        from transformers import LlamaConfig, LlamaForCausalLM

        config = LlamaConfig(
            vocab_size=128256,
            hidden_size=2048,
            intermediate_size=8192,
            num_hidden_layers=16,
            num_attention_heads=32,
            num_key_value_heads=8,
            head_dim=64,
            max_position_embeddings=4096,
            rope_theta=500000.0,
            tie_word_embeddings=True,
        )
        inputs = {"input_ids": _ids(1, length, 128256), "use_cache": False, "logits_to_keep": 1}
        return Case(LlamaForCausalLM(config), inputs, _mean_square)

    return build


def t5(small: bool) -> Case:
    """T5 encoder and decoder."""
    from transformers import T5Config, T5ForConditionalGeneration

    config = T5Config(
        vocab_size=256 if small else 8192,
        d_model=64 if small else 256,
        d_kv=16 if small else 32,
        d_ff=128 if small else 1024,
        num_layers=2 if small else 4,
        num_heads=4 if small else 8,
        dropout_rate=0.0,
        decoder_start_token_id=0,
        use_cache=False,
    )
    batch, length = (2, 16) if small else (4, 128)
    ids = _ids(batch, length, config.vocab_size)
    return Case(
        T5ForConditionalGeneration(config), {"input_ids": ids, "labels": ids.clone()}, _own_loss
    )


def opt(small: bool) -> Case:
    """OPT decoder."""
    from transformers import OPTConfig, OPTForCausalLM

    config = OPTConfig(
        vocab_size=256 if small else 8192,
        hidden_size=64 if small else 256,
        ffn_dim=128 if small else 1024,
        num_hidden_layers=2 if small else 4,
        num_attention_heads=4,
        max_position_embeddings=256,
        word_embed_proj_dim=64 if small else 256,
        dropout=0.0,
        attention_dropout=0.0,
    )
    ids = _ids(2, 16, 256) if small else _ids(4, 128, config.vocab_size)
    inputs = {"input_ids": ids, "labels": ids.clone(), "use_cache": False}
    return Case(OPTForCausalLM(config), inputs, _own_loss)


def vit_hf(small: bool) -> Case:
    """ViT of transformers, for image classification."""
    from transformers import ViTConfig, ViTForImageClassification

    config = ViTConfig(
        hidden_size=64 if small else 192,
        num_hidden_layers=2 if small else 4,
        num_attention_heads=4,
        intermediate_size=128 if small else 768,
        image_size=32 if small else 224,
        patch_size=8 if small else 16,
        num_labels=10,
        hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0,
    )
    side = config.image_size
    pixels = torch.randn(2 if small else 8, 3, side, side)
    return Case(ViTForImageClassification(config), {"pixel_values": pixels}, _mean_square)


def _timm(
    name: str, batch: int, side: int, small_side: int, small_batch: int = 2, **small_sizes: Any
) -> Builder:
    """A timm model; `small_sizes` are passed to its constructor for the small case."""

    def build(small: bool) -> Case:
        import timm

        model = timm.create_model(name, **(small_sizes if small else {}))
        edge = small_side if small else side
        return Case(
            model, {"x": torch.randn(small_batch if small else batch, 3, edge, edge)}, _mean_square
        )

    return build


def cases() -> dict[str, Builder]:
    """The named cases, in the order of the README's table."""
    tiny_vit = {"img_size": 32, "patch_size": 8, "embed_dim": 64, "depth": 2, "num_heads": 4}
    return {
        "bert": bert,
        "bert-base-1": _bert_base(1),
        "bert-base-32": _bert_base(32),
        "gpt2": gpt2,
        "llama": llama,
        "llama-1b-16": _llama_1b(16),
        "llama-1b-2048": _llama_1b(2048),
        "t5": t5,
        "opt": opt,
        "vit-hf": vit_hf,
        "resnet18": _timm("resnet18", 4, 224, 64),
        "resnet18-1": _timm("resnet18", 1, 224, 64),
        "resnet50": _timm("resnet50", 4, 224, 64),
        "resnet50-64": _timm("resnet50", 64, 224, 64),
        # Of less than some ten numbers a batch norm's gradient is rounding noise.
        "mobilenetv3": _timm("mobilenetv3_small_100", 8, 224, 64, small_batch=16, drop_rate=0.0),
        "vit": _timm("vit_tiny_patch16_224", 8, 224, 32, **tiny_vit),
        "vit-b16-64": _timm("vit_base_patch16_224", 64, 224, 32, **tiny_vit),
        "mixer": _timm("mixer_s32_224", 8, 224, 64, img_size=64),
    }


def architectures() -> list[str]:
    """The named cases, one of each architecture: without those named by a batch or a length."""
    return [name for name in cases() if not name.rpartition("-")[2].isdigit()]


def resolve(name: str) -> Builder:
    """A case by its name, or `module:function` where the function takes `small` and gives a Case
    (or a `(model, inputs)` pair).

    Raises ValueError naming the known cases when there is none of that name.
    """
    known = cases()
    if name in known:
        return known[name]
    module_name, colon, function = name.partition(":")
    if not colon:
        raise ValueError(f"no model {name!r}; known: {', '.join(known)}, or module:function")
    target = getattr(importlib.import_module(module_name), function)

    def build(small: bool) -> Case:
        made = target(small)
        if isinstance(made, Case):
            return made
        model, inputs = made
        return Case(model, inputs, _mean_square)

    return build
