"""Capture alone on real models: one graph, no break, no recapture on the second call; results,
gradients and buffers are eager's bit for bit (the backend runs the captured graph as it is)."""

from __future__ import annotations

import copy
import time
from collections.abc import Callable
from typing import Any

import pytest
import torch
from dovetail_capture.api import optimize

TEXT = {
    "vocab_size": 99,
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 64,
}


def ids(*shape: int) -> torch.Tensor:
    return torch.randint(3, 99, shape)


def masked(rows: int, columns: int) -> torch.Tensor:
    mask = torch.ones(rows, columns, dtype=torch.long)
    mask[0, columns - 3 :] = 0
    return mask


def bert() -> Any:
    from transformers import BertConfig, BertModel

    return BertModel(BertConfig(**TEXT)), {"input_ids": ids(2, 8)}


def bert_masked() -> Any:
    from transformers import BertConfig, BertForMaskedLM

    tokens = ids(2, 8)
    arguments = {"input_ids": tokens, "attention_mask": masked(2, 8), "labels": tokens}
    return BertForMaskedLM(BertConfig(**TEXT)), arguments


def bert_everything() -> Any:
    from transformers import BertConfig, BertForSequenceClassification

    config = BertConfig(**TEXT, attn_implementation="eager", num_labels=3)
    arguments = {
        "input_ids": ids(2, 8),
        "labels": torch.tensor([0, 2]),
        "output_hidden_states": True,
        "output_attentions": True,
    }
    return BertForSequenceClassification(config), arguments


def gpt2() -> Any:
    from transformers import GPT2Config, GPT2LMHeadModel

    config = GPT2Config(vocab_size=99, n_embd=32, n_layer=2, n_head=4, bos_token_id=1,
                        eos_token_id=2)  # fmt: skip
    return GPT2LMHeadModel(config), {"input_ids": ids(2, 8)}


def gpt2_labels() -> Any:
    model, arguments = gpt2()
    mask = masked(2, 8).flip(1)
    return model, {**arguments, "labels": arguments["input_ids"], "attention_mask": mask}


def llama() -> Any:
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(**TEXT, num_key_value_heads=2)
    return LlamaForCausalLM(config), {"input_ids": ids(2, 8)}


def llama_without_cache() -> Any:
    model, arguments = llama()
    mask = masked(2, 8).flip(1)
    return model, {**arguments, "use_cache": False, "attention_mask": mask}


def t5() -> Any:
    from transformers import T5Config, T5ForConditionalGeneration

    config = T5Config(vocab_size=99, d_model=32, d_kv=8, d_ff=64, num_layers=2, num_heads=4,
                      decoder_start_token_id=0)  # fmt: skip
    model = T5ForConditionalGeneration(config)
    return model, {"input_ids": ids(2, 8), "labels": ids(2, 5), "attention_mask": masked(2, 8)}


def opt() -> Any:
    from transformers import OPTConfig, OPTForCausalLM

    config = OPTConfig(vocab_size=99, hidden_size=32, num_hidden_layers=2, num_attention_heads=4,
                       ffn_dim=64, word_embed_proj_dim=32)  # fmt: skip
    return OPTForCausalLM(config), {"input_ids": ids(2, 8), "attention_mask": masked(2, 8).flip(1)}


def vit() -> Any:
    from transformers import ViTConfig, ViTForImageClassification

    sizes = {key: value for key, value in TEXT.items() if key != "vocab_size"}
    config = ViTConfig(**sizes, image_size=32, patch_size=8)
    return ViTForImageClassification(config), {"pixel_values": torch.randn(2, 3, 32, 32)}


def timm_model(name: str, size: int) -> Callable[[], Any]:
    def make() -> Any:
        import timm

        return timm.create_model(name, num_classes=10), {"x": torch.randn(2, 3, size, size)}

    return make


MODELS: dict[str, Callable[[], Any]] = {
    "bert": bert,
    "bert-masked-lm": bert_masked,
    "bert-everything": bert_everything,
    "gpt2": gpt2,
    "gpt2-labels": gpt2_labels,
    "llama": llama,
    "llama-without-cache": llama_without_cache,
    "t5": t5,
    "opt": opt,
    "vit": vit,
    "timm-resnet18": timm_model("resnet18", 64),
    "timm-resnet50": timm_model("resnet50", 64),
    "timm-mobilenetv3": timm_model("mobilenetv3_small_100", 64),
    "timm-vit": timm_model("vit_tiny_patch16_224", 224),
    "timm-mixer": timm_model("mixer_s16_224", 224),
}


class Counter:
    """A backend that counts graphs and runs them as they are."""

    def __init__(self) -> None:
        self.graphs: list[torch.fx.GraphModule] = []

    def __call__(self, gm: torch.fx.GraphModule, example_inputs: list[Any]) -> Any:
        self.graphs.append(gm)
        return gm


def tensors(output: Any) -> list[torch.Tensor]:
    """All tensors of a model's output, those in a key/value cache too."""
    if isinstance(output, torch.Tensor):
        return [output]
    if hasattr(output, "to_tuple"):
        output = output.to_tuple()
    if hasattr(output, "self_attention_cache"):
        output = [output.self_attention_cache, output.cross_attention_cache]
    if hasattr(output, "layers"):
        output = [part for layer in output.layers for part in (layer.keys, layer.values)]
    if isinstance(output, (list, tuple)):
        return [tensor for part in output for tensor in tensors(part)]
    return []


@pytest.mark.parametrize("training", [False, True], ids=["eval", "train"])
@pytest.mark.parametrize("name", MODELS)
def test_one_graph_equal_to_eager(name: str, training: bool) -> None:
    torch.manual_seed(0)
    model, arguments = MODELS[name]()
    model.train(training)
    eager = copy.deepcopy(model)
    backend = Counter()
    captured = optimize(model, backend, fullgraph=True)
    for call in range(2):
        torch.manual_seed(call)
        expected = eager(**arguments)
        torch.manual_seed(call)
        actual = captured(**arguments)
        assert type(expected) is type(actual)
        if hasattr(expected, "keys"):
            assert list(expected.keys()) == list(actual.keys())
        left, right = tensors(expected), tensors(actual)
        assert len(left) == len(right) > 0
        assert all(torch.equal(a, b) for a, b in zip(left, right, strict=True))
    # transformers installs its output hooks in the first call that asks for hidden states.
    assert len(backend.graphs) == (2 if name == "bert-everything" else 1)
    buffers = zip(eager.named_buffers(), model.named_buffers(), strict=True)
    assert all(torch.equal(a, b) for (_, a), (_, b) in buffers)
    if training:
        for outputs in (left, right):
            sum(t.float().square().mean() for t in outputs if t.requires_grad).backward()
        for a, b in zip(eager.parameters(), model.parameters(), strict=True):
            assert (a.grad is None) == (b.grad is None)
            if a.grad is not None:
                torch.testing.assert_close(a.grad, b.grad)


@pytest.mark.parametrize("name", ["gpt2", "llama", "opt"])
def test_decoding_with_a_cache_from_outside(name: str) -> None:
    """A step that reads and extends a cache made by an earlier call."""
    model, arguments = MODELS[name]()
    model.eval()
    backend = Counter()
    captured = optimize(model, backend, fullgraph=True)
    tokens = arguments["input_ids"]
    with torch.no_grad():
        expected_cache = model(tokens, use_cache=True).past_key_values
        actual_cache = copy.deepcopy(expected_cache)
        for step in range(3):
            token = tokens[:, step : step + 1]
            expected = model(token, past_key_values=expected_cache, use_cache=True)
            actual = captured(token, past_key_values=actual_cache, use_cache=True)
            assert actual.past_key_values is actual_cache
            assert torch.equal(expected.logits, actual.logits)
            left, right = tensors(expected_cache), tensors(actual_cache)
            assert all(torch.equal(a, b) for a, b in zip(left, right, strict=True))


def test_capture_is_fast() -> None:
    """Four BERT layers are captured in well under a second, even on a busy machine."""
    from dovetail_capture.interpreter import capture_frame
    from transformers import BertConfig, BertModel

    model = BertModel(BertConfig(**{**TEXT, "num_hidden_layers": 4})).eval()
    forward = BertModel.forward
    code = forward.__code__
    raw = (model, (), {"input_ids": ids(2, 8)})
    assert code.co_varnames[:3] == ("self", "args", "kwargs")
    capture_frame(code, forward, raw)
    start = time.process_time()
    frame = capture_frame(code, forward, raw)
    assert time.process_time() - start < 1.0
    assert frame.break_ is None
