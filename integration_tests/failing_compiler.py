"""A compiler that fails at one of its own calls, anywhere, and what is compared then."""

from __future__ import annotations

import gc
import random
import sys
from collections.abc import Callable
from types import FrameType
from typing import Any

import torch
from dovetail_autograd_aot.calls.lazy_backward import LazyBackward
from dovetail_capture.frames.context import CaptureContext
from torch import Tensor, nn

from dovetail.per_size import PerSize

_GENERATOR = 0x20
_ENTRIES = frozenset(
    f.__code__ for f in (CaptureContext.on_miss, LazyBackward._compiled, PerSize._compile)
)
_OURS = tuple(
    f"/packages/{name}/src/"
    for name in ("capture", "guards", "autograd_aot", "prims", "inductor", "runtime")
) + ("/src/dovetail/",)
# What an error passes through on its way to the user, what puts state back, and what torch's C++
# asks of a symbolic number, or of a fake about its sizes, where no exception may pass (it would end
# the process).
_HANDLING = (
    "/failures.py",
    "/callers.py",
    "/torch_state.py",
    "/python_state.py",
    "/sym_node.py",
    "/sym_value.py",
)
_HANDLERS = frozenset(
    ("__exit__", "_judged", "_note", "_uncompiled", "_without_kernels", "recover")
)


_SIZES = frozenset(
    f"aten::sym_{name}" for name in ("size", "stride", "numel", "storage_offset", "is_contiguous")
)


class Mistake(AssertionError):
    """What is raised inside the compiler."""


class Failing:
    """A profiler's function that counts the compiler's calls of its own functions, and raises at
    the call number `at`. `where` says which that was."""

    def __init__(self, at: int = 0) -> None:
        self.at = at
        self.calls = 0
        self.where = ""
        self._depth = 0
        self._question: FrameType | None = None

    def __call__(self, frame: FrameType, event: str, _: Any) -> None:
        code = frame.f_code
        if self._question is not None:
            if event == "return" and frame is self._question:
                self._question = None
            return
        if event == "call" and code.co_name == "__torch_dispatch__":
            schema = getattr(frame.f_locals.get("func"), "_schema", None)
            if schema is not None and schema.name in _SIZES:
                self._question = frame
                return
        if code in _ENTRIES:
            self._depth += {"call": 1, "return": -1}.get(event, 0)
            return
        if event != "call" or not self._depth or self.where:
            return
        goes_on = code.co_flags & _GENERATOR and frame.f_lasti > 5
        filename = code.co_filename
        if goes_on or code.co_name in _HANDLERS or filename.endswith(_HANDLING):
            return
        if not any(part in filename for part in _OURS):
            return
        self.calls += 1
        if self.calls == self.at:
            caller = frame.f_back
            by = "?" if caller is None else f"{caller.f_code.co_filename}:{caller.f_lineno}"
            self.where = f"{code.co_name} ({filename}), called at {by}"
            raise Mistake(f"at call {self.at}")


def torch_state() -> tuple[Any, ...]:
    """What a compiler that fails is to leave as it was."""
    nesting = torch.autocast_increment_nesting()
    torch.autocast_decrement_nesting()
    return (
        torch.is_grad_enabled(),
        torch._C._len_torch_dispatch_stack(),
        torch._C._len_torch_function_stack(),
        torch.is_autocast_enabled("cpu"),
        torch.get_autocast_dtype("cpu"),
        nesting,
        torch.is_inference_mode_enabled(),
        torch._C._is_torch_function_enabled(),
        str(torch._C._dispatch_tls_local_include_set()),
        str(torch._C._dispatch_tls_local_exclude_set()),
        torch.get_default_dtype(),
        gc.isenabled(),
    )


class Model(nn.Module):
    """Effects, autocast, random numbers of both kinds, buffers, a write to an input, a view."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(6, 6)
        self.norm = nn.LayerNorm(6)
        self.batch = nn.BatchNorm1d(6)
        self.calls: list[int] = []

    def forward(self, x: Tensor, scale: float) -> tuple[Tensor, Tensor]:
        self.calls.append(len(self.calls))
        with torch.autocast("cpu", dtype=torch.bfloat16):
            hidden = self.linear(x)
        hidden = nn.functional.dropout(self.batch(hidden.float()), 0.2)
        hidden = torch.softmax(self.norm(hidden), -1) * scale
        x.add_(1)
        if len(self.calls) % 2 == 0:
            print(end="")  # breaks the graph
        with torch.no_grad():
            shift = hidden.sum() + random.random()
        return hidden.relu() + shift, x.t()


def train(compiled: Callable[[nn.Module], Any], steps: int = 2) -> tuple[list[Tensor], list[Any]]:
    """Steps of training with sizes and numbers that change: tensors, and what else is seen."""
    torch.manual_seed(1)
    random.seed(1)
    model = Model()
    call = compiled(model)
    seen: list[Tensor] = []
    for step in range(steps):
        x = torch.randn(4 + step, 6)
        result, view = call(x, 0.5 + step)
        result.square().sum().backward()
        seen += [result.detach(), view, x]
        seen += [p.grad.clone() for p in model.parameters() if p.grad is not None]
        seen += [b.clone() for b in model.buffers()]
    others = [model.calls, torch.get_rng_state().tolist(), random.getstate()]
    return seen, others


def profiled(function: Failing, run: Callable[[], Any]) -> Any:
    """`run` with the compiler's calls watched."""
    sys.setprofile(function)
    try:
        return run()
    finally:
        sys.setprofile(None)
