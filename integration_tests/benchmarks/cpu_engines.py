"""Nets on a CPU, float32 inference: eager, torch.compile, Dovetail, ONNX Runtime and OpenVINO.

uv run --extra onnxrt --extra openvino --with onnxscript \\
    python integration_tests/benchmarks/cpu_engines.py [NET ...] [--batch 1 8] [--threads 2]

Every system has its own copy of the net's weights and the same number of threads. They take turns,
and of all rounds the fastest counts, as other work on the machine slows down any of them. Prints a
Markdown table of milliseconds; systems that are not installed are left out, with a line that says
so. `constants` is Dovetail with `constant_weights`, as both engines hold weights to be. With
`--cpu-time` the process's CPU time counts, which of one thread is the time on a quiet machine.
"""

from __future__ import annotations

import argparse
import io
import math
import os
import tempfile
import warnings
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from time import perf_counter, process_time
from typing import Any

import torch
from cpu_images import Call, fastest
from timm import create_model
from torch import Tensor, nn
from transformers import BertConfig, BertModel

import dovetail
from dovetail.bench.table import machine


class Encoder(nn.Module):
    """BERT's base configuration with four layers; gives its last states."""

    def __init__(self) -> None:
        super().__init__()
        self.model = BertModel(BertConfig(num_hidden_layers=4), add_pooling_layer=False)

    def forward(self, tokens: Tensor) -> Tensor:
        states: Tensor = self.model(tokens).last_hidden_state
        return states


NETS = {
    "resnet18": lambda: create_model("resnet18"),
    "mobilenetv3-small": lambda: create_model("mobilenetv3_small_100"),
    "mobilenetv3-large": lambda: create_model("mobilenetv3_large_100"),
    "bert": Encoder,
}


def given(name: str, batch: int) -> Tensor:
    """A net's input: images of 224 x 224, or rows of 128 tokens."""
    if name == "bert":
        return torch.randint(0, 30_000, (batch, 128))
    return torch.randn(batch, 3, 224, 224)


def exported(net: nn.Module, x: Tensor) -> bytes:
    """The net as an ONNX model."""
    out = io.BytesIO()
    torch.onnx.export(net, (x,), out, dynamo=False, opset_version=17)
    return out.getvalue()


def onnx_runtime(net: nn.Module, x: Tensor, threads: int) -> Call:
    """A call of ONNX Runtime's."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads, options.inter_op_num_threads = threads, 1
    session = onnxruntime.InferenceSession(
        exported(net, x), options, providers=["CPUExecutionProvider"]
    )
    feed = {session.get_inputs()[0].name: x.numpy()}
    return lambda: session.run(None, feed)[0]


def openvino(net: nn.Module, x: Tensor, threads: int) -> Call:
    """A call of OpenVINO's, set to compute in float32 and to answer one request at once."""
    import openvino

    core = openvino.Core()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "net.onnx")
        path.write_bytes(exported(net, x))
        hints = {
            "INFERENCE_NUM_THREADS": threads,
            "INFERENCE_PRECISION_HINT": "f32",
            "PERFORMANCE_HINT": "LATENCY",
        }
        compiled = core.compile_model(core.read_model(path), "CPU", hints)
    request = compiled.create_infer_request()
    array = x.numpy()

    def call() -> Any:
        return request.infer([array], share_inputs=True, share_outputs=True)[0]

    return call


def in_torch(compiled: Callable[[nn.Module], Any]) -> Callable[[nn.Module, Tensor, int], Call]:
    """What makes a call of a system that runs within PyTorch."""

    def make(net: nn.Module, x: Tensor, threads: int) -> Call:
        run = compiled(net)

        def call() -> Any:
            with torch.no_grad():
                return run(x)

        return call

    return make


SYSTEMS: dict[str, tuple[str, Callable[[nn.Module, Tensor, int], Call]]] = {
    "eager": ("torch", in_torch(lambda net: net)),
    "torch.compile": ("torch", in_torch(torch.compile)),
    "dovetail": ("torch", in_torch(dovetail.compile)),
    "constants": (
        "torch",
        in_torch(lambda net: dovetail.compile(net, options={"constant_weights": True})),
    ),
    "ONNX Runtime": ("onnxruntime", onnx_runtime),
    "OpenVINO": ("openvino", openvino),
}


def row(name: str, batch: int, systems: list[str], arguments: argparse.Namespace) -> str:
    """One line of the table: times, what the others' times are of ours, the largest error."""
    x = given(name, batch)
    calls: dict[str, Call] = {}
    error, expected = 0.0, torch.empty(0)
    for system in systems:
        torch.manual_seed(0)
        calls[system] = SYSTEMS[system][1](NETS[name]().eval(), x, arguments.threads)
        found = torch.as_tensor(calls[system]())
        expected = found if system == "eager" else expected
        if expected.numel():
            error = max(error, (found - expected).abs().max().item())
    clock = process_time if arguments.cpu_time else perf_counter
    ms = fastest(calls, arguments.rounds, clock)
    cells = [f"{ms[system]:.2f}" for system in systems]
    ours = {"dovetail", "constants"}
    engines = [ms[s] for s in systems if s not in ours | {"eager", "torch.compile"}]
    for mine, others in (
        ("dovetail", [ms.get("torch.compile", math.nan)]),
        ("constants", engines or [math.nan]),
    ):
        cells.append(f"{min(others) / ms[mine]:.2f}x" if mine in ms else "")
    return f"| {name} | {batch} | {' | '.join(cells)} | {error:.0e} |"


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("nets", nargs="*", metavar="NET", help=", ".join(NETS))
    parser.add_argument("--batch", type=int, nargs="+", default=[1, 8])
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--cpu-time", action="store_true")
    parser.add_argument("--systems", nargs="+", default=list(SYSTEMS), choices=list(SYSTEMS))
    arguments = parser.parse_args()
    warnings.simplefilter("ignore")
    torch.set_num_threads(arguments.threads)
    systems = []
    for system in arguments.systems:
        package = SYSTEMS[system][0]
        if find_spec(package) is None:
            print(f"{system} is left out: {package} is not installed")
        else:
            systems.append(system)
    print(f"{machine('cpu')}; {arguments.threads} threads; load {os.getloadavg()[0]:.1f}\n")
    print(f"| net | batch | {' | '.join(systems)} | dovetail : torch.compile ", end="")
    print("| constants : best engine | error |\n|---|---|" + "---|" * (len(systems) + 3))
    for name in arguments.nets or NETS:
        for batch in arguments.batch:
            print(row(name, batch, systems, arguments), flush=True)


if __name__ == "__main__":
    main()
