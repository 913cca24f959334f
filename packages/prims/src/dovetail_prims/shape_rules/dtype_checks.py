"""Dtypes that an operator's kernel does not take, found by running eager's kernel.

Which dtypes a kernel takes differs between operators, overloads, devices and versions of PyTorch.
So eager itself is asked, once for each operator and combination of operand dtypes: the kernel runs
on stand-ins, small tensors of ones of the same dtypes and ranks, and what it raises is raised for
all calls of that combination. If a call of other dtypes fails as well, the error is of another
cause and tells nothing. Answers are kept as long as the table of rules.
"""

from __future__ import annotations

import operator
import warnings
from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch._ops import OpOverload

from dovetail_prims.fake_tensor import FakeTensor, ShapeRule, hint_of

# Operators, besides those that PyTorch tags as pointwise, that check all of their arguments before
# they touch memory. The kernels of others, above all those of backwards, rely on what made their
# arguments, and read and write beyond the stand-ins.
_CHECKED = frozenset(
    {
        "_cdist_forward", "_log_softmax", "_prelu_kernel", "_safe_softmax", "_softmax",
        "_trilinear", "addbmm", "addmm", "addmv", "addr", "all", "amax", "amin", "aminmax", "any",
        "arange", "argmax", "argmin", "baddbmm", "bernoulli", "binary_cross_entropy",
        "binary_cross_entropy_with_logits", "bmm", "bucketize", "cauchy", "celu", "complex",
        "count_nonzero", "cummax", "cummin", "cumprod", "cumsum", "dot", "exponential", "fill",
        "floor_divide", "full", "full_like", "geometric", "glu", "hardshrink", "hardswish",
        "hash_tensor", "huber_loss", "isin", "kthvalue", "linspace", "log_normal",
        "log_sigmoid_forward", "log_softmax", "logcumsumexp", "logspace", "logsumexp", "max",
        "mean", "median", "min", "mm", "mode", "mse_loss", "mv", "nanmedian", "nansum",
        "native_layer_norm", "norm", "normal", "polar", "prod", "rand_like", "randn_like", "random",
        "renorm", "rrelu_with_noise", "rsub", "searchsorted", "slogdet", "smooth_l1_loss",
        "soft_margin_loss", "softmax", "sort", "std", "std_mean", "sum", "topk", "trace", "tril",
        "triu", "uniform", "var", "var_mean", "vdot", "zero",
    }
)  # fmt: skip
# Such operators whose kernels check what is in memory too: a GPU would stop at the stand-ins.
_CHECKED_ON_CPU = frozenset(
    {
        "_adaptive_avg_pool2d", "_adaptive_avg_pool3d", "_batch_norm_with_update", "_fft_c2c",
        "_fft_r2c", "_histogramdd_bin_edges", "_histogramdd_from_bin_cts",
        "_histogramdd_from_bin_tensors", "_linalg_det", "_linalg_eigh", "_linalg_slogdet",
        "_linalg_solve_ex", "_linalg_svd", "_log_softmax_backward_data", "_native_batch_norm_legit",
        "_pdist_forward", "_softmax_backward_data", "_upsample_bicubic2d_aa",
        "_upsample_bilinear2d_aa", "_upsample_nearest_exact1d", "_upsample_nearest_exact2d",
        "_upsample_nearest_exact3d", "adaptive_max_pool2d", "adaptive_max_pool3d", "avg_pool2d",
        "avg_pool3d", "cholesky_inverse", "cholesky_solve", "convolution", "fractional_max_pool2d",
        "fractional_max_pool3d", "geqrf", "grid_sampler_2d", "grid_sampler_3d", "histc",
        "histogram", "im2col", "index_reduce", "max_pool2d_with_indices",
        "max_pool2d_with_indices_backward", "max_pool3d_with_indices", "max_unpool2d",
        "max_unpool3d", "multi_margin_loss", "multilabel_margin_loss_forward", "multinomial",
        "native_batch_norm", "native_group_norm", "nll_loss2d_forward", "nll_loss_forward", "ormqr",
        "randn", "reflection_pad1d", "reflection_pad2d", "reflection_pad3d", "replication_pad1d",
        "replication_pad2d", "replication_pad3d", "scatter_reduce", "take", "triangular_solve",
        "tril_indices", "triu_indices", "upsample_bicubic2d", "upsample_bilinear2d",
        "upsample_linear1d", "upsample_nearest1d", "upsample_nearest2d", "upsample_nearest3d",
        "upsample_trilinear3d",
    }
)  # fmt: skip
_LARGEST = 8  # number given as a size
_LONGEST = 9  # dimension of a stand-in (no such number: kernels that resize nothing take any dtype)
# Lengths of dimensions (None: the tensor's own) and elements of stand-ins, in the order tried.
_ON_CPU = ((2, 1), (None, 1), (_LONGEST, 1), (None, 0))
_ON_GPU = ((2, 0), (None, 0), (_LONGEST, 0))
_INDICES = (torch.int32, torch.int64)
_MOST = 5  # dimensions that may be as large


def refusing_dtypes(func: Any, rule: ShapeRule | None) -> ShapeRule | None:
    """The rule of an operator, after a check that eager's kernel takes the operands' dtypes."""
    if not isinstance(func, OpOverload) or func.namespace != "aten" or not _is_asked(func):
        return rule
    return _after_check(func, rule)


def _is_asked(func: OpOverload) -> bool:
    name = _name(func)
    if not (_is_pointwise(func) or name in _CHECKED or _is_for_cpu(name)):
        return False
    key = torch._C.DispatchKey
    return any(
        func.has_kernel_for_dispatch_key(k)
        for k in (
            key.CPU,
            key.CompositeExplicitAutograd,
            key.CompositeExplicitAutogradNonFunctional,
            key.CompositeImplicitAutograd,
        )
    )


def _is_pointwise(func: OpOverload) -> bool:
    """Whether PyTorch tags a form of an operator so (those in place it does not tag)."""
    name = _name(func)
    if torch.Tag.pointwise in func.tags:
        return not name.startswith("_foreach_")
    packet = getattr(torch.ops.aten, name, None)
    if packet is None or name.startswith("_foreach_"):
        return False
    return any(torch.Tag.pointwise in getattr(packet, form).tags for form in packet.overloads())


def _is_for_cpu(name: str) -> bool:
    return name in _CHECKED_ON_CPU or name.startswith("linalg_")


def _name(func: OpOverload) -> str:
    """An operator's name, that of its functional form if it works in place."""
    return func._schema.name.removeprefix("aten::").removesuffix("_")


def _after_check(func: OpOverload, rule: ShapeRule | None) -> ShapeRule:
    answers: dict[Hashable, Exception | None] = {}

    def checked(*args: Any, **kwargs: Any) -> Any:
        signature: list[Any] = []
        _describe(args, signature)
        if kwargs:
            signature += kwargs
            _describe(kwargs.values(), signature)
        key = tuple(signature)
        # (As eager, which looks at sizes first; a kernel is not asked about sizes that do not fit.)
        result = NotImplemented if rule is None else rule(*args, **kwargs)
        if key in answers:
            refusal = answers[key]
        else:
            refusal = answers[key] = _ask(func, args, kwargs)
        if refusal is not None:
            raise type(refusal)(*refusal.args)
        return result

    return checked


def _describe(values: Any, signature: list[Any]) -> None:
    """Append what tells one call's stand-ins from another's."""
    for v in values:
        kind = type(v)
        if kind is FakeTensor:
            signature += (v._dtype, v._device, len(v._sizes))
            for n in v._sizes:
                if type(n) is int and n == 0:
                    signature.append(tuple(map(_is_zero, v._sizes)))
                    break
        elif kind is int:
            signature += (int, v if -_LARGEST < v < _LARGEST else _LARGEST)
        elif kind is list or kind is tuple:
            signature += (list, len(v))
            _describe(v, signature)
        elif kind is complex:
            signature += (complex, v.imag == 0)
        elif kind is bool or kind is str or kind is torch.dtype or kind is torch.device:
            signature += (kind, v)
        else:
            signature += (kind,)


def _is_zero(size: Any) -> bool:
    return type(size) is int and size == 0


def _ask(func: OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Exception | None:
    """What eager raises for operands of these dtypes whatever their values; None if nothing."""
    fakes = list(_fakes((*args, *kwargs.values())))
    device = fakes[0]._device if fakes else torch.device(kwargs.get("device") or "cpu")
    on_cpu = device.type == "cpu"
    if not on_cpu and (device.type != "cuda" or not _may_run_on_gpu(func, fakes)):
        return None
    refusals: list[tuple[int | None, int, Exception]] = []
    for length, value in _ON_CPU if on_cpu else _ON_GPU:
        refusal = _attempt(func, args, kwargs, _StandIns(length, value))
        if refusal is None:
            return None
        refusals.append((length, value, refusal))
    for length, value, refusal in refusals:
        for change in (*_other_dtypes(fakes), *_other_outs(func, kwargs)):
            if _attempt(func, args, kwargs, _StandIns(length, value, change)) is None:
                return refusal
    return None


def _fakes(values: Any) -> Iterator[FakeTensor]:
    for v in values:
        if type(v) is FakeTensor:
            yield v
        elif isinstance(v, (list, tuple)):
            yield from _fakes(v)


def _may_run_on_gpu(func: OpOverload, fakes: Sequence[FakeTensor]) -> bool:
    """Whether a GPU is there, and no kernel can fail on it, which would end the process' use of it:
    where there are elements the index 0 is valid, and no probabilities are zero."""
    if not torch.cuda.is_available() or torch.cuda.is_current_stream_capturing():
        return False
    if _is_for_cpu(_name(func)):
        return False
    empty = any(_is_zero(n) for fake in fakes for n in fake._sizes)
    return not empty and torch.Tag.nondeterministic_seeded not in func.tags


def _attempt(
    func: OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any], stand_ins: _StandIns
) -> Exception | None:
    """What the kernel raises for stand-ins of the arguments."""
    draws = torch.Tag.nondeterministic_seeded in func.tags
    on_gpu = [f._device for f in _fakes((*args, *kwargs.values())) if f._device.type == "cuda"]
    arguments = func._schema.arguments
    by_name = {a.name: a for a in arguments}
    try:
        with (
            warnings.catch_warnings(),
            torch._C._DisableTorchDispatch(),
            torch._C.DisableTorchFunction(),
            torch._C._AutoDispatchBelowAutograd(),
            torch.random.fork_rng(on_gpu[:1], enabled=draws),
        ):
            warnings.simplefilter("ignore")
            made = [stand_ins.of(v, a) for v, a in zip(args, arguments, strict=False)]
            named = {name: stand_ins.of(v, by_name[name]) for name, v in kwargs.items()}
            func(*made, **named)
    except Exception as error:
        return error.with_traceback(None)
    return None


@dataclass(frozen=True, slots=True)
class _StandIns:
    """Makes small arguments of a call.

    `length`: of each dimension of a tensor (None: its own, if small); `value`: of its elements;
    `change`: the dtypes of another call, which eager may take, by tensors and dtypes given; its
    numbers are then real.
    """

    length: int | None
    value: int
    change: _Change | None = None

    def of(self, given: Any, argument: torch.Argument) -> Any:
        """The stand-in of one argument; of what is written to as `out`, without elements."""
        kind = type(given)
        if kind is FakeTensor:
            rank = len(given._sizes)
            sizes = (0,) if argument.is_out else tuple(self._size(n, rank) for n in given._sizes)
            dtype = given._dtype if self.change is None else self.change(given)
            return torch.full(sizes, self.value, dtype=dtype, device=given._device)
        if kind is list or kind is tuple:
            if len(given) > _MOST and type(given[0]) is int:
                return [min(max(n, -2), 2) for n in given]
            return [self.of(v, argument) for v in given]
        if kind is torch.dtype and self.change is not None:
            return self.change(given)
        is_operand = any(kind in str(argument.type) for kind in ("number", "Tensor"))
        if isinstance(given, (bool, torch.SymBool)):
            own: Any = given if kind is bool else True
        elif isinstance(given, (int, torch.SymInt)):
            own = min(max(given, -_LARGEST), _LARGEST) if kind is int else 2
        elif isinstance(given, (float, torch.SymFloat)):
            if not is_operand and isinstance(argument.type, torch.OptionalType):
                return None  # (a scale, which must fit the sizes)
            own = 1.0 if is_operand else 0.5  # (of probabilities any)
        elif isinstance(given, complex):
            own = 1j if given.imag else 1 + 0j  # (which all dtypes hold)
        else:
            return None if kind is torch.Generator else given
        if self.change is not None and is_operand:
            kinds = (int,) if self.change(torch.float32) is torch.int64 else (int, float)
            return own if type(own) in kinds else 1
        return own

    def _size(self, size: Any, rank: int) -> int:
        if self.length is None:
            return min(hint_of(size), _LONGEST if rank <= _MOST else 2)
        return 0 if _is_zero(size) else self.length if rank <= _MOST else 2


_Given = FakeTensor | torch.dtype


@dataclass(frozen=True, slots=True)
class _Change:
    """Other dtypes for a call's tensors and dtype arguments: `dtype` for what `changed` holds of,
    for all else `rest` (None: its own)."""

    dtype: torch.dtype
    changed: Callable[[_Given], bool]
    rest: torch.dtype | None = None

    def __call__(self, given: _Given) -> torch.dtype:
        if self.changed(given):
            return self.dtype
        return _own(given) if self.rest is None else self.rest


def _own(given: _Given) -> torch.dtype:
    return given if isinstance(given, torch.dtype) else given._dtype


def _other_outs(func: OpOverload, kwargs: dict[str, Any]) -> Iterator[_Change]:
    """Changes of the dtype of what is written to as `out`: kernels that convert nothing want one
    dtype alone."""
    outs = _fakes(kwargs.get(a.name) for a in func._schema.arguments if a.is_out)
    for out in outs:
        for dtype in (torch.bool, torch.int64, torch.float32, torch.float64, torch.complex64):
            yield _Change(dtype, partial(operator.is_, out))


def _other_dtypes(tensors: Sequence[FakeTensor]) -> Iterator[_Change]:
    """Changes of the dtypes of a call with these tensors that its operator may take."""
    first = tensors[0] if tensors else None
    for index in tensors[1:_MOST]:
        kept = index._dtype if index._dtype in _INDICES else torch.int64
        yield _Change(kept, partial(operator.is_, index), torch.float32)
    for dtype in (torch.float32, torch.int64):
        yield _Change(dtype, lambda given: True)
        yield _Change(dtype, lambda given: given is first)
        yield _Change(dtype, lambda given: given is first, torch.int64)
        yield _Change(dtype, lambda given: first is not None and _own(given) is first._dtype)
        yield _Change(dtype, lambda given: _own(given) not in _INDICES)
