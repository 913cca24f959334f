"""Functions of torch that a graph holds only when they are said otherwise, in Python.

The interpreter runs these bodies where a program calls the original: what asks for data is written
so that the graph may hold the question, or check the answer.
"""

from __future__ import annotations

import functools
import inspect
import types
from typing import Any

import torch
import torch.nn.functional as F
import torch.nn.modules.transformer as torch_transformer
from torch.distributions import constraints

from dovetail_capture.interpreter.library.standard_library.polyfills import interpreted
from dovetail_capture.interpreter.machine.machine import PASS, Args, Handler, Kwargs
from dovetail_capture.interpreter.protocols import inlining
from dovetail_capture.interpreter.values.base import Constant
from dovetail_capture.interpreter.values.containers import ListValue, TupleValue
from dovetail_capture.interpreter.values.symbolic import SymbolicNumber
from dovetail_capture.interpreter.values.tensors import TensorValue


def decorated_by_context(context: Any, function: Any) -> Any:
    """`context(function)` of torch's context managers that are decorators too. Of a generator each
    step is in the context, and what is done between two steps is not."""
    if inspect.isgeneratorfunction(function):

        @functools.wraps(function)
        def decorate_generator(*args: Any, **kwargs: Any) -> Any:
            generator = function(*args, **kwargs)
            step, given = generator.send, None
            try:
                while True:
                    with context.clone():
                        item = step(given)
                    try:
                        step, given = generator.send, (yield item)
                    except GeneratorExit:
                        with context.clone():
                            generator.close()
                        raise
                    except BaseException as error:
                        step, given = generator.throw, error
            except StopIteration as stop:
                return stop.value

        return decorate_generator

    @functools.wraps(function)
    def decorate_context(*args: Any, **kwargs: Any) -> Any:
        with context.clone():
            return function(*args, **kwargs)

    return decorate_context


def equal(input: Any, other: Any) -> Any:
    """`torch.equal`."""
    return input.shape == other.shape and (input == other).all().item()


def allclose(
    input: Any, other: Any, rtol: Any = 1e-5, atol: Any = 1e-8, equal_nan: Any = False
) -> Any:
    """`torch.allclose`."""
    return torch.isclose(input, other, rtol, atol, equal_nan).all().item()


def cov(input: Any, *, correction: Any = 1, fweights: Any = None, aweights: Any = None) -> Any:
    """`torch.cov`: the mean of products of distances from the mean, by weights."""
    rows = input.reshape(1, -1) if input.dim() < 2 else input
    for weights in (fweights, aweights):
        if weights is not None and weights.numel() > 0:
            torch._check((weights.min() >= 0).item(), lambda: "cov(): negative weights")
    weight: Any = None
    if fweights is not None:
        weight = fweights if aweights is None else fweights * aweights
    elif aweights is not None:
        weight = aweights
    if weight is None:
        total: Any = rows.shape[1]
        mean = rows.sum(1) / total
        norm = max(total - correction, 0)
    else:
        total = weight.sum()
        mean = (rows * weight).sum(1) / total
        if aweights is not None and correction != 0:
            norm = total - correction * (weight * aweights).sum() / total
        else:
            norm = total - correction
        norm = norm.clamp(min=0)
    apart = rows - mean.unsqueeze(1)
    weighted = apart if weight is None else apart * weight
    return (torch.mm(apart, weighted.t().conj()) / norm).squeeze()


def corrcoef(input: Any) -> Any:
    """`torch.corrcoef`: covariances over both standard deviations."""
    found = torch.cov(input)
    if found.dim() == 0:
        return found / found
    spread = found.diag()
    if found.is_complex():
        spread = spread.real
    spread = spread.sqrt()
    found = found / spread.view(-1, 1) / spread.view(1, -1)
    if found.is_complex():
        return torch.complex(found.real.clip(-1, 1), found.imag.clip(-1, 1))
    return found.clip(-1, 1)


def _of_rows(function: Any) -> Handler:
    """A handler for covariances. Whether weights are negative, or add up to 0, depends on data: so
    may the graph, or not. What eager refuses is left to it."""

    def handler(vm: Any, args: Args, kwargs: Kwargs) -> Any:
        rows = args[0] if args else kwargs.get("input")
        if (
            not isinstance(rows, TensorValue)
            or rows.fake.dim() > 2
            or rows.fake.dtype is torch.bool
        ):
            return PASS
        if "correction" in kwargs and kwargs["correction"].python_type() is not int:
            return PASS
        weighted = any(isinstance(kwargs.get(n), TensorValue) for n in ("fweights", "aweights"))
        if weighted and vm.session.recorder.data_env is None:
            return PASS
        return inlining.inline(vm, function, args, kwargs)

    return handler


def _if_truth_may_wait(function: Any) -> Handler:
    """A handler for what is true or not by data: the body of the function, which gives the truth of
    a tensor, where the graph may check it or may depend on data."""

    def handler(vm: Any, args: Args, kwargs: Kwargs) -> Any:
        if vm.session.recorder.data_env is None and not vm.session.checks.allowed:
            return PASS
        return inlining.inline(vm, function, args, kwargs)

    return handler


def _decorate(vm: Any, args: Args, kwargs: Kwargs) -> Any:
    """`torch.no_grad()(function)` and its like; a class is left to Python."""
    if args[1].python_type() not in (types.FunctionType, types.MethodType):
        return PASS
    return inlining.inline(vm, decorated_by_context, args, kwargs)


def detect_is_causal_mask(mask: Any, is_causal: Any = None, size: Any = None) -> bool:
    # Whether a mask is a causal one is a hint, which attention may do without: it has the mask.
    # The mask's data would tell, and only outside of a graph.
    return is_causal is True


def _causal_hint(vm: Any, args: Args, kwargs: Kwargs) -> Any:
    """Of a mask that takes a gradient it is more than a hint: attention without it gives none."""
    mask = args[0] if args else kwargs.get("mask")
    if isinstance(mask, TensorValue) and mask.fake.requires_grad and torch.is_grad_enabled():
        return PASS
    return interpreted(detect_is_causal_mask)(vm, args, kwargs)


# Constraints of `torch.distributions`, which ask one thing after the other, are asked all at once.

_symmetric: Any = constraints.symmetric


def check_symmetric(self: Any, value: Any) -> Any:
    if value.shape[-2] != value.shape[-1]:
        return torch.full(value.shape[:-2], False, dtype=torch.bool, device=value.device)
    return torch.isclose(value, value.mT, atol=1e-6).all(-2).all(-1)


def check_semidefinite(self: Any, value: Any) -> Any:
    symmetric = _symmetric.check(value)
    if value.shape[-2] != value.shape[-1]:
        return symmetric
    return torch.where(symmetric.all(), torch.linalg.eigvalsh(value).ge(0).all(-1), symmetric)


def check_definite(self: Any, value: Any) -> Any:
    symmetric = _symmetric.check(value)
    if value.shape[-2] != value.shape[-1]:
        return symmetric
    return torch.where(symmetric.all(), torch.linalg.cholesky_ex(value).info.eq(0), symmetric)


def numel(sizes: Any) -> Any:
    """`torch.Size.numel`: a product of sizes that may be symbolic."""
    count = 1
    for size in sizes:
        count = count * size
    return count


def _pad(vm: Any, args: Args, kwargs: Kwargs) -> Any:
    """`F.pad` with a number that follows from sizes. It takes one for a float, which would tie the
    sizes to what they are; the operator that it calls leaves the number as it is."""
    given = dict(zip(("input", "pad", "mode", "value"), args, strict=False)) | dict(kwargs)
    value, mode = given.get("value"), given.get("mode")
    padded, widths = given.get("input"), given.get("pad")
    if not isinstance(value, SymbolicNumber) or not isinstance(padded, TensorValue):
        return PASS
    if mode is not None and not (isinstance(mode, Constant) and mode.value == "constant"):
        return PASS
    if not isinstance(widths, (ListValue, TupleValue)):
        return PASS
    count = len(list(vm.iterate(widths)))
    if count % 2 or count > 2 * padded.fake.dim():
        return PASS  # (eager says what is wrong)
    return vm.call(Constant(torch.constant_pad_nd), [padded, widths, value], {})


def infer_size(a: Any, b: Any) -> Any:
    """`torch._C._infer_size`: the size of what two sizes are broadcast to."""
    sizes: list[Any] = []
    for place in range(-1, -1 - max(len(a), len(b)), -1):
        first = a[place] if -place <= len(a) else 1
        second = b[place] if -place <= len(b) else 1
        if first != second and first != 1 and second != 1:
            raise RuntimeError(
                f"The size of tensor a ({first}) must match the size of tensor b ({second}) at "
                f"non-singleton dimension {max(len(a), len(b)) + place}"
            )
        sizes.insert(0, second if first == 1 else first)
    return torch.Size(sizes)


def compiled(model: Any = None, **options: Any) -> Any:
    """`torch.compile` in what is being compiled: the function itself, whose calls are captured."""
    if model is None:
        return lambda model: model
    return model


_CONSTRAINTS: dict[Any, Any] = {
    type(constraints.symmetric).check: check_symmetric,
    type(constraints.positive_semidefinite).check: check_semidefinite,
    type(constraints.positive_definite).check: check_definite,
}

HANDLERS: dict[Any, Handler] = {
    **{original: interpreted(function) for original, function in _CONSTRAINTS.items()},
    torch_transformer._detect_is_causal_mask: _causal_hint,
    torch.utils._contextlib._DecoratorContextManager.__call__: _decorate,
    torch.Size.numel: interpreted(numel),
    F.pad: _pad,
    torch._C._infer_size: interpreted(infer_size),
    torch.cov: _of_rows(cov),
    torch.Tensor.cov: _of_rows(cov),
    torch.corrcoef: _of_rows(corrcoef),
    torch.Tensor.corrcoef: _of_rows(corrcoef),
    torch.equal: _if_truth_may_wait(equal),
    torch.Tensor.equal: _if_truth_may_wait(equal),
    torch.allclose: _if_truth_may_wait(allclose),
    torch.Tensor.allclose: _if_truth_may_wait(allclose),
    torch.ops.aten.equal: _if_truth_may_wait(equal),
    torch.ops.aten.equal.default: _if_truth_may_wait(equal),
    torch.ops.aten.allclose: _if_truth_may_wait(allclose),
    torch.ops.aten.allclose.default: _if_truth_may_wait(allclose),
}
BY_NAME: dict[tuple[str, str], Handler] = {("torch", "compile"): interpreted(compiled)}
