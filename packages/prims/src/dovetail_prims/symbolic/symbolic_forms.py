"""Calls that PyTorch computes with the numbers of their sizes, in terms of some that it does not.

Where it asks for numbers, a symbolic size would be tied to the example's. Up to 2.14 it does so for
`matmul` of more than two dimensions, for attention, for `interpolate`, and for powers. And
`one_hot`, of which it traces another form, without the checks that eager makes,
`gaussian_nll_loss`, which asks for data, `ctc_loss`, which makes a tensor with data, and `tensor`
and its like, which store numbers. Spectra of windows are in `image_forms`, recurrent layers in
`recurrent`, images in `image_forms`.
"""

from __future__ import annotations

import functools
import inspect
import math
import operator
from collections.abc import Callable, Mapping, Sequence
from typing import Any, cast

import torch
from torch import Tensor
from torch._C import _functorch

from dovetail_prims.sizes.batched_matmul import batched_matmul, has_symbolic_sizes
from dovetail_prims.symbolic.attention import attention, unfused_attention
from dovetail_prims.symbolic.float_forms import FLOAT_FORMS
from dovetail_prims.symbolic.image_forms import IMAGE_FORMS, SPECTRAL_FORMS
from dovetail_prims.symbolic.recurrent import RECURRENT_FORMS

_ASKS_FOR_NUMBERS = torch.__version__ < "2.15"
"""Whether this PyTorch asks for numbers in C++, where later ones do not."""

_POWERS = (
    torch.pow, torch.Tensor.pow, torch.Tensor.pow_, torch.Tensor.__pow__, torch.Tensor.__ipow__,
    operator.pow, operator.ipow,
)  # fmt: skip


def _matmul(*args: Any, **kwargs: Any) -> Any:
    return NotImplemented if kwargs or len(args) != 2 else batched_matmul(*args)


def _linear(x: Tensor, weight: Tensor, bias: Tensor | None = None, **kwargs: Any) -> Any:
    """`linear` of three dimensions or more, which is a `matmul` if nothing is added."""
    if bias is not None or weight.dim() != 2 or kwargs:
        return NotImplemented
    return batched_matmul(x, weight.t())


def _attention(query: Tensor, *args: Any, **kwargs: Any) -> Any:
    """Attention on a GPU, also of known sizes: C++ would lay out its result as on a CPU."""
    if query.device.type != "cuda":
        if query.device.type != "cpu" or not _ASKS_FOR_NUMBERS or not has_symbolic_sizes(query):
            return NotImplemented
        return unfused_attention(query, *args, **kwargs)
    return attention(query, *args, **kwargs)


def _pow(function: Callable[..., Any]) -> Callable[..., Any]:
    """A power by a symbolic number, with a gradient: up to 2.14 autograd asks whether the exponent
    is 0, and can ask this of no symbolic integer. (The exponent decides what is multiplied, so
    that whoever computes the power asks for its number, too.)"""

    def form(self: Any, exponent: Any) -> Any:
        differentiated = isinstance(self, Tensor) and self.requires_grad
        if type(exponent) is not torch.SymInt or not differentiated or not torch.is_grad_enabled():
            return NotImplemented
        return function(self, int(exponent))

    return form


def _lerp(x: Tensor, end: Tensor, weight: Any) -> Any:
    """`lerp` by a symbolic float, which C++ takes as a number: by a tensor of it."""
    if not isinstance(weight, torch.SymFloat):
        return NotImplemented
    return torch.lerp(x, end, torch.full((), cast(Any, weight), dtype=x.dtype, device=x.device))


def _resize_as(x: Tensor, template: Tensor, **options: Any) -> Any:
    """`resize_as_` a tensor of symbolic sizes, which C++ asks for numbers."""
    if options or not has_symbolic_sizes(template):
        return NotImplemented
    return x.resize_(template.shape)


def _fused_step(function: Callable[..., Any]) -> Callable[..., Any]:
    """A `_fused_` step of an optimizer by a symbolic learning rate, which C++ takes as a number (a
    schedule changes it each step): by a tensor of it, which the step takes as well."""

    def form(params: Sequence[Tensor], *args: Any, lr: Any, **kwargs: Any) -> Any:
        if not isinstance(lr, torch.SymFloat) or not params:
            return NotImplemented
        rate = torch.full((), cast(Any, lr), dtype=torch.float64, device=params[0].device)
        return function(params, *args, lr=rate, **kwargs)

    return form


def _tensor(
    data: Any,
    *,
    dtype: torch.dtype | None = None,
    device: Any = None,
    requires_grad: bool = False,
    **options: Any,
) -> Any:
    """`torch.tensor` of numbers, in lists of any depth, some of them symbolic."""
    numbers, sizes = _listed(data)
    if requires_grad or options or not any(isinstance(n, _SYMBOLIC) for n in numbers):
        return NotImplemented
    if not all(isinstance(n, (int, float, *_SYMBOLIC)) for n in numbers):
        return NotImplemented
    if dtype is None:  # (whole numbers beside truth values are whole numbers)
        whole = all(isinstance(n, (int, torch.SymInt)) for n in numbers)
        dtype = torch.int64 if whole else torch.get_default_dtype()
    made = [torch.full((), cast(Any, n), dtype=dtype, device=device) for n in numbers]
    return torch.stack(made).view(sizes) if sizes else made[0]


def _listed(data: Any) -> tuple[list[Any], tuple[int, ...]]:
    """The items of nested lists or tuples of one length a level, and these lengths; no items where
    lengths differ."""
    if not isinstance(data, (list, tuple)):
        return [data], ()
    parts = [_listed(item) for item in data]
    if not parts or any(sizes != parts[0][1] for _, sizes in parts):
        return [], ()
    return [n for items, _ in parts for n in items], (len(parts), *parts[0][1])


def _new_tensor(x: Tensor, data: Any, **options: Any) -> Any:
    """`x.new_tensor` of symbolic numbers: on x's device and of its dtype."""
    kept = {name: value for name, value in options.items() if value is not None}
    return _tensor(data, **{"dtype": x.dtype, "device": x.device, **kept})


def _take_along_dim(x: Tensor, indices: Tensor, dim: int | None = None) -> Any:
    """`take_along_dim` of symbolic sizes, of which none is repeated. Indices go around."""
    if dim is None or not (has_symbolic_sizes(x) or has_symbolic_sizes(indices)):
        return NotImplemented
    if (
        indices.dtype is not torch.int64
        or x.dim() != indices.dim()
        or not -x.dim() <= dim < x.dim()
    ):
        return NotImplemented
    if any(x.shape[d] != indices.shape[d] for d in range(x.dim()) if d != dim % x.dim()):
        return NotImplemented
    return x.gather(dim, indices.remainder(x.shape[dim]))


def _kron(a: Tensor, other: Tensor, *, out: Tensor | None = None) -> Any:
    """The Kronecker product of symbolic sizes: all products of elements, pairs of dimensions put
    together."""
    if out is not None or not (has_symbolic_sizes(a) or has_symbolic_sizes(other)):
        return NotImplemented
    rank = max(a.dim(), other.dim())
    left, right = ([1] * (rank - x.dim()) + list(x.shape) for x in (a, other))
    rows = a.view([n for size in left for n in (size, 1)])
    columns = other.view([n for size in right for n in (1, size)])
    sizes = [m * n for m, n in zip(left, right, strict=True)]
    return torch.ops.aten._unsafe_view(rows * columns, sizes)


def _is_mapped(x: Tensor) -> bool:
    """Whether `vmap` takes a tensor apart, at any level of transforms."""
    while _functorch.is_functorch_wrapped_tensor(x):
        if _functorch.is_batchedtensor(x):
            return True
        x = _functorch.get_unwrapped(x)
    return False


def _one_hot(x: Tensor, num_classes: Any = -1) -> Any:
    """`one_hot` of a given number of classes: row-major, and the classes checked on a CPU. (`vmap`
    has a rule for it, and none for the check.)"""
    if x.dtype is not torch.int64 or (type(num_classes) is int and num_classes < 0):
        return NotImplemented
    if _is_mapped(x):
        return NotImplemented
    if type(num_classes) is int and num_classes == 0:
        raise RuntimeError("one_hot: there must be a class")
    if x.device.type == "cpu":
        torch._assert_async((x >= 0).all(), "Class values must be non-negative.")
        few = (x < num_classes).all()
        torch._assert_async(few, "Class values must be smaller than num_classes.")
    classes = torch.arange(num_classes, device=x.device)
    return (x.contiguous().unsqueeze(-1) == classes).to(torch.int64)


def _gaussian_nll_loss(
    input: Tensor,
    target: Tensor,
    var: Any,
    full: bool = False,
    eps: float = 1e-6,
    reduction: str = "mean",
) -> Any:
    """`gaussian_nll_loss` of variances in a tensor: that none is negative is asserted. (Clamped
    where autograd does not see it, they get the gradient of what they were clamped to.)"""
    if not isinstance(var, Tensor) or reduction not in ("none", "mean", "sum"):
        return NotImplemented
    torch._assert_async(~(var < 0).any(), "var has negative entry/entries")
    if var.size() != input.size():
        ones = [(a, b) for a, b in zip(input.size(), var.size(), strict=False) if a != b]
        if input.size()[:-1] == var.size():
            var = var.unsqueeze(-1)
        elif input.dim() != var.dim() or sum(own for _, own in ones) != 1:
            raise ValueError("var is of incorrect size")
    var = var.clone()
    with torch.no_grad():
        var.clamp_(min=eps)
    loss = 0.5 * (torch.log(var) + (input - target) ** 2 / var)
    if full:
        loss = loss + 0.5 * math.log(2 * math.pi)
    return loss if reduction == "none" else loss.mean() if reduction == "mean" else loss.sum()


def _batch_norm(
    x: Tensor,
    running_mean: Tensor | None,
    running_var: Tensor | None,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    training: bool = False,
    momentum: Any = 0.1,
    eps: float = 1e-5,
) -> Any:
    """`batch_norm` whose running averages move by a symbolic float (a cumulative average's weight
    is one over the count of batches), which C++ takes as a number."""
    if not training or not isinstance(momentum, torch.SymFloat):
        return NotImplemented
    result = torch.nn.functional.batch_norm(x, None, None, weight, bias, True, 0.0, eps)
    if running_mean is not None and running_var is not None:
        with torch.no_grad():
            dims = [0, *range(2, x.dim())]
            wide = x.detach().to(running_mean.dtype)
            for running, now in ((running_mean, wide.mean(dims)), (running_var, wide.var(dims))):
                running.mul_(1 - momentum).add_(now * momentum)
    return result


def _mean_ctc_loss(mean: Any, none: Any, function: Callable[..., Any]) -> Callable[..., Any]:
    """The mean of `ctc_loss` over sequences whose lengths are numbers, of which C++ would make a
    tensor with data; `mean` and `none` are what the function calls the kinds of reduction."""

    def form(
        log_probs: Tensor,
        targets: Tensor,
        input_lengths: Any,
        target_lengths: Any,
        blank: int = 0,
        reduction: Any = mean,
        zero_infinity: bool = False,
    ) -> Any:
        if reduction != mean or isinstance(target_lengths, Tensor):
            return NotImplemented
        lengths = input_lengths, target_lengths
        losses = function(log_probs, targets, *lengths, blank, none, zero_infinity)
        divisors = torch.tensor(
            [max(n, 1) for n in target_lengths], dtype=losses.dtype, device=losses.device
        )
        return (losses / divisors).mean()

    return form


_SYMBOLIC = (torch.SymInt, torch.SymFloat)

_FUSED_STEPS: tuple[Callable[..., Any], ...] = tuple(
    getattr(torch, f"_fused_{name}_") for name in ("adam", "adamw", "sgd", "adagrad")
)


def is_one_truth(key: Any) -> bool:
    """Whether an index is a tensor that is one truth value."""
    return isinstance(key, Tensor) and key.dtype is torch.bool and key.dim() == 0


def set_if(x: Tensor, condition: Tensor, value: Any) -> None:
    """`x[condition] = value` by one truth value, of which PyTorch makes an index (none, or one)."""
    if not isinstance(value, Tensor):
        value = torch.full((), value, dtype=x.dtype, device=x.device)
    if value.dim() > x.dim():
        value = value.squeeze(0)
    x.copy_(torch.where(condition.to(x.device), value.to(x.dtype), x))


def _setitem(x: Any, key: Any, value: Any) -> Any:
    return set_if(x, key, value) if isinstance(x, Tensor) and is_one_truth(key) else NotImplemented


SYMBOLIC_FORMS: Mapping[Any, Callable[..., Any]] = {
    torch.matmul: _matmul,
    operator.matmul: _matmul,
    torch.Tensor.matmul: _matmul,
    torch.Tensor.__matmul__: _matmul,
    torch.nn.functional.linear: _linear,
    torch.nn.functional.scaled_dot_product_attention: _attention,
    torch.nn.functional.one_hot: _one_hot,
    torch.Tensor.resize_as_: _resize_as,
    torch.take_along_dim: _take_along_dim,
    torch.Tensor.take_along_dim: _take_along_dim,
    torch.kron: _kron,
    torch.Tensor.kron: _kron,
    torch.nn.functional.gaussian_nll_loss: _gaussian_nll_loss,
    torch.nn.functional.ctc_loss: _mean_ctc_loss("mean", "none", torch.nn.functional.ctc_loss),
    torch.ctc_loss: _mean_ctc_loss(1, 0, torch.ctc_loss),
    torch.nn.functional.batch_norm: _batch_norm,
    operator.setitem: _setitem,
    torch.Tensor.__setitem__: _setitem,
    torch.tensor: _tensor,
    torch.as_tensor: _tensor,
    torch.asarray: _tensor,
    torch.Tensor.new_tensor: _new_tensor,
    torch.lerp: _lerp,
    torch.Tensor.lerp: _lerp,
    **{f: _fused_step(f) for f in _FUSED_STEPS},
    **({f: _pow(f) for f in _POWERS} if _ASKS_FOR_NUMBERS else {}),
    **FLOAT_FORMS,
    **IMAGE_FORMS,
    **SPECTRAL_FORMS,
    **RECURRENT_FORMS,
}
"""What stands for a call, by its function, where it gives a result (not NotImplemented)."""


def symbolic_form(function: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    """The result of a call by its form for symbolic sizes; NotImplemented if it needs none."""
    form = _form(function)
    return NotImplemented if form is None else call_form(form, args, kwargs)


_FIRST_NAMES = frozenset({"input", "obj"})
"""How torch's functions name what a form takes first, whatever it calls it."""


def call_form(form: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    """What a form gives for a call of the function that it stands for: the first argument may be
    given by its name. NotImplemented for a call with an argument that the form does not take (as
    `out`)."""
    if not args:
        first = next((name for name in kwargs if name in _FIRST_NAMES), None)
        if first is None:
            return form(**kwargs) if _takes(form, kwargs) else NotImplemented
        args = (kwargs[first],)
        kwargs = {name: value for name, value in kwargs.items() if name != first}
    return form(*args, **kwargs) if not kwargs or _takes(form, kwargs) else NotImplemented


def _takes(form: Callable[..., Any], kwargs: Mapping[str, Any]) -> bool:
    names = _keywords(form)
    return names is None or kwargs.keys() <= names


@functools.cache
def _keywords(form: Callable[..., Any]) -> frozenset[str] | None:
    """The names of a form's parameters; None if it takes any."""
    parameters = inspect.signature(form).parameters.values()
    if any(p.kind is p.VAR_KEYWORD for p in parameters):
        return None
    return frozenset(p.name for p in parameters if p.kind is not p.VAR_POSITIONAL)


def _form(function: Any) -> Callable[..., Any] | None:
    try:
        return SYMBOLIC_FORMS.get(function)
    except TypeError:  # no hash
        return None
