"""Calls of captured programs that are rewritten above autograd, where `RewritingMode` sees them.

They are those whose derivative, as PyTorch writes it, has a shape that depends on data or asks for
a number that does, by others whose derivative does not; calls that would ask for the numbers of
symbolic sizes; and calls that PyTorch does not write the results of where they are to go once it
knows that somebody looks on. Attention whose mask is made of constants and hides nothing (models
build one where eager skips it) gets none, for one that hides what comes later there are kernels
that need none; then what `REWRITES` lists comes (attention on a GPU is there).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from dovetail_prims.symbolic.symbolic_forms import SYMBOLIC_FORMS, call_form, is_one_truth, set_if
from torch import Tensor
from torch._C import _functorch
from torch.overrides import TorchFunctionMode

from dovetail_autograd_aot.trace.constants import kind_of_constant
from dovetail_autograd_aot.trace.node_values import same_size


def _gets_gradient(value: Any) -> bool:
    return isinstance(value, Tensor) and value.requires_grad and torch.is_grad_enabled()


def _written_where(x: Tensor, mask: Any, values: Tensor) -> Any:
    """`x` with `values` wherever the mask holds; the derivative would be a sum of `grad[mask]`."""
    if not isinstance(mask, Tensor) or mask.dtype is not torch.bool or mask.dim() == 0:
        return NotImplemented
    if mask.device != x.device and mask.device.type != "cpu":
        return NotImplemented  # eager refuses it
    rest = x.dim() - mask.dim()
    if values.dim() == rest + 1 and isinstance(values.shape[0], torch.SymInt):
        if values.shape[0].node.hint is None:
            return NotImplemented  # as many values as the mask has places
    if rest < 0 or tuple(mask.shape) != tuple(x.shape[: mask.dim()]):
        return NotImplemented
    if values.dim() == rest + 1 and values.shape[0] == 1:
        values = values[0]
    if values.dim() > rest:
        return NotImplemented  # a value for each place: how many depends on the mask
    places = mask.to(x.device).reshape(tuple(mask.shape) + (1,) * rest)
    return torch.where(places, values.to(x.dtype), x)


def _index_put(x: Tensor, indices: Sequence[Any], values: Tensor, accumulate: bool = False) -> Any:
    if accumulate or len(indices) != 1 or not _gets_gradient(values):
        return NotImplemented
    return _written_where(x, indices[0], values)


def _index_put_(x: Tensor, indices: Sequence[Any], values: Tensor, accumulate: bool = False) -> Any:
    result = _index_put(x, indices, values, accumulate)
    return result if result is NotImplemented else x.copy_(result)


def _setitem(x: Tensor, key: Any, value: Any) -> Any:
    if is_one_truth(key):
        return set_if(x, key, value)
    if not _gets_gradient(value):
        return NotImplemented
    result = _written_where(x, key, value)
    if result is NotImplemented:
        return result
    x.copy_(result)
    return None


def _index_fill(x: Tensor, dim: int, index: Tensor, value: Any) -> Any:
    """The derivative of the value sums the gradient over the distinct indices."""
    if not _gets_gradient(value) or not isinstance(dim, int):
        return NotImplemented
    if x.dim() == 0:
        written = torch.full((), index.numel() > 0, dtype=torch.bool, device=x.device)
        return torch.where(written, value.to(x.dtype), x)
    chosen = torch.zeros((x.shape[dim],), dtype=torch.bool, device=x.device)
    chosen = chosen.index_fill(0, index, True)
    shape = [1] * x.dim()
    shape[dim] = x.shape[dim]
    return torch.where(chosen.view(shape), value.to(x.dtype), x)


def _index_fill_(x: Tensor, dim: int, index: Tensor, value: Any) -> Any:
    result = _index_fill(x, dim, index, value)
    return result if result is NotImplemented else x.copy_(result)


def _is_symbolic_factor(name: str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> bool:
    """Whether a derivative would ask if a factor, `name`, is 1, which only the data tells."""
    if kwargs.keys() != {name} or not isinstance(kwargs[name], (torch.SymFloat, torch.SymInt)):
        return False
    real = all(isinstance(x, Tensor) and x.dtype.is_floating_point for x in args)
    return real and any(map(_gets_gradient, args))


def _scaled_sum(function: Callable[..., Any]) -> Callable[..., Any]:
    """`add`, `sub` and their in-place forms."""

    def form(*args: Any, **kwargs: Any) -> Any:
        if len(args) != 2 or not _is_symbolic_factor("alpha", args, kwargs):
            return NotImplemented
        return function(args[0], args[1] * kwargs["alpha"])

    return form


def _scaled_product(function: Callable[..., Any]) -> Callable[..., Any]:
    """`addcmul`, `addcdiv` and their in-place forms."""

    def form(*args: Any, **kwargs: Any) -> Any:
        if len(args) != 3 or not _is_symbolic_factor("value", args, kwargs):
            return NotImplemented
        return function(args[0], args[1] * kwargs["value"], args[2])

    return form


def _variance(x: Tensor, given: Mapping[str, Any]) -> tuple[Tensor, Tensor]:
    """Variance and mean, by their definition."""
    dims = given.get("dim")
    dims = [dims] if isinstance(dims, int) else list(dims or range(x.dim()))
    correction = given.get("correction")
    if correction is None:
        correction = 1 if given.get("unbiased", True) else 0
    keepdim = bool(given.get("keepdim", False))
    count = torch.full((), math.prod(x.shape[d] for d in dims), dtype=x.dtype, device=x.device)
    middle = x.mean(dims, keepdim=True)
    total = (x - middle).square().sum(dims, keepdim=keepdim)
    if not keepdim:
        middle = middle.squeeze(dims)
    return total / (count - correction).clamp(min=0), middle


def _root(variance: Tensor) -> Tensor:
    """The standard deviation; where it is 0 its gradient is."""
    none = variance == 0
    return torch.where(none, 0.0, torch.where(none, 1.0, variance).sqrt())


def _spread(with_mean: bool, root: bool) -> Callable[..., Any]:
    """`var`, `std` and their like of as many elements as only the data tells. (PyTorch's derivative
    divides by their count, as a number; of one, or of none, it may be 0.)"""

    def form(x: Any, *args: Any, **kwargs: Any) -> Any:
        names = (
            ("unbiased",) if args and isinstance(args[0], bool) else ("dim", "unbiased", "keepdim")
        )
        given = {**dict(zip(names, args, strict=False)), **kwargs}
        known = given.keys() <= {"dim", "unbiased", "correction", "keepdim"}
        if not known or not _gets_gradient(x) or not x.dim() or not x.is_floating_point():
            return NotImplemented
        if not any(isinstance(n, torch.SymInt) and n.node.hint is None for n in x.shape):
            return NotImplemented
        wide = x.float() if x.dtype.itemsize < 4 else x
        variance, middle = _variance(wide, given)
        found = (_root(variance) if root else variance).to(x.dtype)
        return (found, middle.to(x.dtype)) if with_mean else found

    return form


# --- cumprod --------------------------------------------------------------------------------------
# (A derivative of a few operators, whatever the data and the number of elements. PyTorch's own asks
# the data whether a factor is zero; where it cannot (PyTorch 2.11), it computes the derivative by
# each factor from scratch: thousands of operators for a thousand elements.)


class _RunningProduct(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, dim: int) -> Tensor:
        result = x.cumprod(dim)
        ctx.save_for_backward(x, result)
        ctx.dim = dim
        return result

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        x, result = (saved.conj() for saved in ctx.saved_tensors)
        if same_size(x.shape[ctx.dim], 1):
            return gradient, None  # (in eager, too, it lies as it is given)
        if torch.is_grad_enabled():  # it will be differentiated
            found = _by_each_factor(gradient, x, ctx.dim)
        else:
            found = _by_quotients(gradient, x, result, ctx.dim)
        return found.contiguous(), None  # as PyTorch's own lies


def _by_quotients(gradient: Tensor, x: Tensor, result: Tensor, dim: int) -> Tensor:
    """The derivative by the factors before the first zero of a row is a quotient; by those after it
    it is zero; by the zero itself, a sum over the products without it."""
    zero = x == 0
    zeros = zero.cumsum(dim)
    first = zero & (zeros == 1)
    sums_from_here_on = (gradient * result).flip(dim).cumsum(dim).flip(dim)
    quotient = sums_from_here_on / torch.where(zero, 1, x)
    without = torch.where(first, 1, x).cumprod(dim)
    by_zero = torch.where(zeros > 0, gradient * without, 0).sum(dim, keepdim=True)
    return torch.where(first, by_zero, torch.where(zeros == 0, quotient, 0))


def _by_each_factor(gradient: Tensor, x: Tensor, dim: int) -> Tensor:
    """The product of the factors before each, times the sum over the products of those after it: as
    many terms as pairs of elements, but right where zeros are, too, when it is differentiated."""
    x, gradient = x.movedim(dim, -1), gradient.movedim(dim, -1)
    pairs = torch.ones(x.shape[-1], x.shape[-1], dtype=torch.bool, device=x.device)
    after = torch.where(pairs.triu(1), x.unsqueeze(-2), 1).cumprod(-1)
    sums = torch.where(pairs.triu(), gradient.unsqueeze(-2) * after, 0).sum(-1)
    before = torch.cat([torch.ones_like(x[..., :1]), x[..., :-1].cumprod(-1)], -1)
    return (before * sums).movedim(-1, dim)


def running_product(x: Tensor, dim: int) -> Tensor:
    """`x.cumprod(dim)` of a tensor with dimensions that gets a gradient."""
    result: Tensor = _RunningProduct.apply(x, dim)
    return result


def _cumprod(in_place: bool) -> Callable[..., Any]:
    """`cumprod` and `cumprod_` outside of the transforms of `torch.func`."""

    def form(x: Any, *args: Any, **kwargs: Any) -> Any:
        given = {**dict(zip(("dim",), args, strict=False)), **kwargs}
        known = len(args) <= 1 and given.keys() <= {"dim", "dtype"}
        if not known or not isinstance(given.get("dim"), int) or not _gets_gradient(x):
            return NotImplemented
        if not x.dim() or _functorch.is_functorch_wrapped_tensor(x):
            return NotImplemented
        dtype = given.get("dtype")
        if not in_place:
            return running_product(x if dtype is None else x.to(dtype), given["dim"])
        if dtype not in (None, x.dtype):
            return NotImplemented  # eager refuses it
        # The derivative needs what is overwritten.
        return x.copy_(running_product(x.clone(), given["dim"]))

    return form


# --- calls whose `out` is lost --------------------------------------------------------------------


def _kron(a: Tensor, other: Tensor, *, out: Tensor | None = None) -> Any:
    """PyTorch writes to a view of `out` that it takes behind autograd's back."""
    if out is None:
        return SYMBOLIC_FORMS[torch.kron](a, other)
    rank = max(a.dim(), other.dim())
    left = (*[1] * (rank - a.dim()), *a.shape)
    right = (*[1] * (rank - other.dim()), *other.shape)
    pairs = [*zip(left, right, strict=True)]
    sizes = [n * m for n, m in pairs]
    if tuple(out.shape) != tuple(sizes):
        out.resize_(sizes)
    factors = (
        a.reshape([n for x, _ in pairs for n in (x, 1)]),
        other.reshape([n for _, y in pairs for n in (1, y)]),
    )
    torch.mul(*factors, out=out.view([n for pair in pairs for n in pair]))
    return out


def _matrix_rank(*args: Any, out: Tensor | None = None, **kwargs: Any) -> Any:
    """PyTorch gives a new tensor instead where a mode looks on."""
    if out is None:
        return NotImplemented
    return torch.sum(torch.linalg.matrix_rank(*args, **kwargs).unsqueeze(-1), -1, out=out)


def _chain_matmul(*matrices: Tensor, out: Tensor | None = None) -> Any:
    """`torch.chain_matmul` forgets `out` on the way to a mode."""
    return torch.linalg.multi_dot(matrices, out=out)


DIRECT_CALLS: Mapping[Any, Callable[..., Any]] = {torch.functional.chain_matmul: _chain_matmul}
"""What stands for functions that lose an argument before any mode sees the call."""


_SUMS = (
    torch.add, torch.Tensor.add, torch.Tensor.add_, torch.sub, torch.Tensor.sub, torch.Tensor.sub_,
)  # fmt: skip
_PRODUCTS = (
    torch.addcmul, torch.Tensor.addcmul, torch.Tensor.addcmul_,
    torch.addcdiv, torch.Tensor.addcdiv, torch.Tensor.addcdiv_,
)  # fmt: skip


_SPREADS: Mapping[Any, Callable[..., Any]] = {
    **dict.fromkeys((torch.var, torch.Tensor.var), _spread(False, False)),
    **dict.fromkeys((torch.std, torch.Tensor.std), _spread(False, True)),
    torch.var_mean: _spread(True, False),
    torch.std_mean: _spread(True, True),
}


REWRITES: Mapping[Any, Callable[..., Any]] = {
    **SYMBOLIC_FORMS,
    torch.kron: _kron,
    torch.linalg.matrix_rank: _matrix_rank,
    **dict.fromkeys((torch.cumprod, torch.Tensor.cumprod), _cumprod(False)),
    torch.Tensor.cumprod_: _cumprod(True),
    torch.index_put: _index_put,
    torch.Tensor.index_put: _index_put,
    torch.index_put_: _index_put_,
    torch.Tensor.index_put_: _index_put_,
    torch.Tensor.__setitem__: _setitem,
    torch.index_fill: _index_fill,
    torch.Tensor.index_fill: _index_fill,
    torch.Tensor.index_fill_: _index_fill_,
    **_SPREADS,
    **{function: _scaled_sum(function) for function in _SUMS},
    **{function: _scaled_product(function) for function in _PRODUCTS},
}
"""By function; one that returns NotImplemented leaves the call as it is."""


# --- the mode -------------------------------------------------------------------------------------


class RewritingMode(TorchFunctionMode):
    """Intercepts attention, and what `REWRITES` lists; everything else passes through."""

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        if func is F.scaled_dot_product_attention:
            names = ("query", "key", "value", "attn_mask", "dropout_p", "is_causal")
            named = dict(zip(names, args, strict=False)) | kwargs
            mask = named.get("attn_mask")
            hidden = "" if mask is None else kind_of_constant(mask, what_is_hidden)
            if hidden == "nothing":
                named["attn_mask"] = None
            elif hidden == "the future" and not named.get("is_causal"):
                named |= {"attn_mask": None, "is_causal": True}
            args, kwargs = (named.pop("query"),), named
        rewrite = REWRITES.get(func)
        if rewrite is not None:
            result = call_form(rewrite, args, kwargs)
            if result is not NotImplemented:
                return result
        return func(*args, **kwargs)


def what_is_hidden(mask: Tensor) -> str:
    """What a mask hides: "nothing"; "the future", if it is square and each query sees the keys up
    to its own place; or "" for anything else. It is boolean, or added: then it is 0 or -inf."""
    if mask.dtype is torch.bool:
        seen = mask
    elif mask.is_floating_point():
        seen = mask == 0
        if not bool((seen | (mask == -torch.inf)).all()):
            return ""
    else:
        return ""
    if bool(seen.all()):
        return "nothing"
    if mask.dim() < 2 or mask.shape[-1] != mask.shape[-2]:
        return ""
    past = torch.ones(mask.shape[-2:], dtype=torch.bool).tril()
    return "the future" if bool((seen == past).all()) else ""
