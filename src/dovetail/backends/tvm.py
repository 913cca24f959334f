"""`tvm`: graphs' regions compiled by Apache TVM, through its ONNX front end."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import onnx
import tvm as apache_tvm
from torch import Tensor
from torch.utils.dlpack import from_dlpack
from tvm import relax
from tvm.relax.frontend.onnx import from_onnx

from dovetail.backends.onnx_rules import CAREFUL_RULES
from dovetail.backends.regions import RegionBackend, Run, known_options

_OPTIONS = ("constant_weights", "pipeline", "target")


class Tvm:
    """The engine. `target` is as for `tvm.target.Target`, by default this machine's processor;
    `pipeline` a pass, or the name of one, as for `tvm.relax.build`."""

    name = "tvm"
    rules = CAREFUL_RULES
    lacks: Mapping[str, str] = {
        f"aten.{name}.default": "TVM passes over NaN and infinities"
        for name in ("amax", "amin", "maximum", "minimum")
    }

    def __init__(self, target: Any, pipeline: Any) -> None:
        if target is None:
            processor = apache_tvm.target.codegen.llvm_get_system_cpu()
            target = {"kind": "llvm", "mcpu": processor}
        self.target = apache_tvm.target.Target(target)
        self.pipeline = pipeline

    def load(self, model: bytes, inputs: Sequence[str], outputs: int) -> Run:
        """A virtual machine; inputs are read where they are, results lie in TVM's memory."""
        module = from_onnx(onnx.load_model_from_string(model), sanitize_input_names=False)
        built = apache_tvm.compile(module, target=self.target, relax_pipeline=self.pipeline)
        main = relax.VirtualMachine(built, apache_tvm.cpu())["main"]

        def run(given: Sequence[Tensor]) -> Sequence[Tensor]:
            results = main(*map(apache_tvm.runtime.from_dlpack, given))
            parts = [results] if outputs == 1 else list(results)
            return [from_dlpack(part) for part in parts]

        return run


def tvm(*, options: Mapping[str, Any] | None = None) -> Callable[..., Any]:
    """The backend. Options: `target`, `pipeline` (see `Tvm`), and `constant_weights` (see
    `RegionBackend`)."""
    given = known_options("tvm", options, _OPTIONS)
    engine = Tvm(given.get("target"), given.get("pipeline", "default"))
    return RegionBackend(engine, bool(given.get("constant_weights", False)))
