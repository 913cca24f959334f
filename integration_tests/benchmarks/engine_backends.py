"""BERT and ResNet-18 by the backends around other engines, beside eager, float32 inference.

uv run --extra onnxrt --extra openvino --extra tvm \\
    python integration_tests/benchmarks/engine_backends.py [BACKEND ...] [--small]

Eager and compiled calls alternate; `vs eager` is the median of the pairwise ratios, above 1 faster.
Each engine twice: weights as inputs of each call, and as constants of its models. Backends whose
packages are not installed are left out.
"""

from __future__ import annotations

import argparse
import time
import warnings

import timm
import torch
from torch import Tensor, nn
from transformers import BertConfig, BertModel

import dovetail
from dovetail.bench.measure import interleaved

ENGINES = ("onnxrt", "openvino", "tvm")
HEADER = "| model | backend | weights | first call | eager | compiled | vs eager | error |"


def models(small: bool) -> dict[str, tuple[nn.Module, Tensor]]:
    """BERT-base and ResNet-18, or smaller forms, with random weights, and an input each."""
    sizes = {"num_hidden_layers": 2, "hidden_size": 128, "intermediate_size": 512} if small else {}
    heads = {"num_attention_heads": 4} if small else {}
    bert = BertModel(BertConfig(**sizes, **heads)).eval()
    side = 64 if small else 224
    resnet = timm.create_model("resnet18", num_classes=1000).eval()
    return {
        "BERT": (bert, torch.randint(0, 30000, (1, 32 if small else 128))),
        "ResNet-18": (resnet, torch.randn(1, 3, side, side)),
    }


def row(name: str, model: nn.Module, x: Tensor, backend: str, constant: bool) -> str:
    """One line of the table."""
    options = {"constant_weights": True} if constant else None
    compiled = dovetail.compile(model, backend=backend, options=options)
    start = time.perf_counter()
    found = compiled(x)
    first = time.perf_counter() - start
    expected = model(x)
    error = (found[0] - expected[0]).abs().max().item()
    eager_s, ours_s, ratio = interleaved(lambda: model(x), lambda: compiled(x), "cpu", 5.0)
    return (
        f"| {name} | {backend} | {'constants' if constant else 'inputs'} | {first:.2f} s "
        f"| {eager_s * 1e3:.2f} ms | {ours_s * 1e3:.2f} ms | {ratio:.2f}x | {error:.1e} |"
    )


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("backends", nargs="*", default=ENGINES)
    parser.add_argument("--small", action="store_true", help="models of two layers, small images")
    arguments = parser.parse_args()
    warnings.simplefilter("ignore")
    torch.manual_seed(0)
    print(HEADER + "\n|" + "---|" * 8)
    installed = dovetail.list_backends()
    for name, (model, x) in models(arguments.small).items():
        for backend in (b for b in arguments.backends if b in installed):
            for constant in (False, True):
                with torch.no_grad():
                    print(row(name, model, x, backend, constant), flush=True)


if __name__ == "__main__":
    main()
