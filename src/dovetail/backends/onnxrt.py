"""`onnxrt`: graphs' regions run by ONNX Runtime."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import onnxruntime
import torch
from torch import Tensor

from dovetail.backends.onnx_rules import RULES
from dovetail.backends.regions import RegionBackend, Run, known_options

_OPTIONS = ("constant_weights", "providers", "session_options")


class OnnxRuntime:
    """The engine. `session_options`: an `onnxruntime.SessionOptions`; by default, as many threads
    as PyTorch has. `providers` is as for `onnxruntime.InferenceSession`."""

    name = "onnxrt"
    rules = RULES
    lacks: Mapping[str, str] = {
        f"aten.{name}.default": "ONNX Runtime passes over NaN" for name in ("amax", "amin")
    }

    def __init__(self, providers: Sequence[Any] | None, session_options: Any) -> None:
        self.providers = ["CPUExecutionProvider"] if providers is None else list(providers)
        self.session_options = session_options

    def load(self, model: bytes, inputs: Sequence[str], outputs: int) -> Run:
        """A session; inputs are read where they are, results lie in memory of their own."""
        options = self.session_options
        if options is None:
            options = onnxruntime.SessionOptions()
            options.intra_op_num_threads = torch.get_num_threads()
            options.log_severity_level = 3
        session = onnxruntime.InferenceSession(model, options, providers=self.providers)

        def run(given: Sequence[Tensor]) -> Sequence[Tensor]:
            arrays = {name: v.numpy() for name, v in zip(inputs, given, strict=True)}
            return [torch.from_numpy(result) for result in session.run(None, arrays)]

        return run


def onnxrt(*, options: Mapping[str, Any] | None = None) -> Callable[..., Any]:
    """The backend. Options: `providers`, `session_options` (see `OnnxRuntime`), and
    `constant_weights` (see `RegionBackend`)."""
    given = known_options("onnxrt", options, _OPTIONS)
    engine = OnnxRuntime(given.get("providers"), given.get("session_options"))
    return RegionBackend(engine, bool(given.get("constant_weights", False)))
