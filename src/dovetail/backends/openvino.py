"""`openvino`: graphs' regions run by OpenVINO.

The entry point that OpenVINO publishes for torch.compile hands a graph that it fails for to
torch's own compiler, in silence, and computes in bfloat16 where the processor can; it is a callable
as any other (`openvino.frontend.pytorch.torchdynamo.backend.openvino`). This backend reads its
options `device` and `config`.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import openvino as ov
import torch
from torch import Tensor

from dovetail.backends.onnx_rules import CAREFUL_RULES
from dovetail.backends.regions import RegionBackend, Run, known_options

_OPTIONS = ("config", "constant_weights", "device")


class OpenVino:
    """The engine. `config` is as for `openvino.Core.compile_model`; by default numbers keep their
    precision, and there are as many threads as PyTorch has."""

    name = "openvino"
    rules = CAREFUL_RULES
    lacks: Mapping[str, str] = {
        f"aten.{name}.default": "OpenVINO passes over NaN and infinities"
        for name in ("amax", "amin", "maximum", "minimum")
    }

    def __init__(self, device: str, config: Mapping[str, Any]) -> None:
        self.device = device
        self.config = {"INFERENCE_PRECISION_HINT": "f32", **config}
        if device == "CPU":
            self.config.setdefault("INFERENCE_NUM_THREADS", torch.get_num_threads())
        self.core = ov.Core()

    def load(self, model: bytes, inputs: Sequence[str], outputs: int) -> Run:
        """A compiled model; inputs are read where they are, results are copies."""
        compiled = self.core.compile_model(self.core.read_model(model), self.device, self.config)
        request = compiled.create_infer_request()
        lock = threading.Lock()  # a request is one call at a time

        def run(given: Sequence[Tensor]) -> Sequence[Tensor]:
            arrays = [v.numpy() for v in given]
            with lock:
                results = request.infer(arrays, share_inputs=True, share_outputs=False)
            return [torch.from_numpy(results[i]) for i in range(outputs)]

        return run


def openvino(*, options: Mapping[str, Any] | None = None) -> Callable[..., Any]:
    """The backend. Options: `device`, `config` (see `OpenVino`), and `constant_weights` (see
    `RegionBackend`)."""
    given = known_options("openvino", options, _OPTIONS)
    engine = OpenVino(given.get("device", "CPU"), given.get("config") or {})
    return RegionBackend(engine, bool(given.get("constant_weights", False)))
