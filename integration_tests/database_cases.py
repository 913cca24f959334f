"""The entries of PyTorch's test databases as programs that can be run eager and compiled.

A case is a list of values and a program over them. What it gives is a dictionary of named parts:
results, gradients, parameters, buffers, an optimizer's state, the next random numbers.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from sweep_operators import by_name, gradients, operators
from torch import Tensor, nn
from torch.nn.utils.rnn import PackedSequence
from torch.utils import _pytree as pytree

# What compiles a callable, or leaves it as it is.
Wrap = Callable[[Callable[..., Any]], Callable[..., Any]]
# What copies values: as they are, in float64, or shaken by a rounding.
Change = Callable[[list[Any]], list[Any]]

STEPS = 4  # of an optimizer


@dataclass(frozen=True)
class Case:
    """`run(wrap, values, change)`: the parts; `values` are the case's own after `change`.
    `inside`: what eager computes in, where that is narrower than the values."""

    values: list[Any]
    run: Callable[[Wrap, list[Any], Change], dict[str, Any]]
    inside: torch.dtype | None = None


class _Opened(NamedTuple):
    """A packed sequence as pytree sees no other."""

    data: Tensor
    batch_sizes: Tensor
    sorted_indices: Tensor | None
    unsorted_indices: Tensor | None


def _open(tree: Any) -> Any:
    """Packed sequences become something that pytree looks into."""
    return pytree.tree_map(lambda v: _Opened(*v) if isinstance(v, PackedSequence) else v, tree)


def _close(tree: Any) -> Any:
    """The inverse of `_open`."""
    return pytree.tree_map(
        lambda v: PackedSequence(*v) if isinstance(v, _Opened) else v,
        tree,
        is_leaf=lambda v: isinstance(v, _Opened),
    )


def _detached(values: list[Any]) -> list[Any]:
    return [v.detach() if isinstance(v, Tensor) else v for v in values]


def _leaves(values: list[Any]) -> list[Tensor]:
    return [v for v in values if isinstance(v, Tensor) and v.requires_grad]


# --- modules -------------------------------------------------------------------------------------


def _modules() -> dict[str, Any]:
    """`module_db` by name and, where they differ, by mode."""
    from torch.testing._internal.common_modules import module_db

    found = {}
    for info in module_db:
        for mode in ("train", "eval") if info.train_and_eval_differ else ("train",):
            found[f"{info.name}.{mode}"] = info
    return found


def _module_cases(name: str, info: Any, dtype: torch.dtype, device: str) -> Iterator[Case]:
    training = name.endswith(".train")
    inputs = info.module_inputs_func(
        info, device=device, dtype=dtype, requires_grad=True, training=training
    )
    for sample in inputs:
        yield _module_case(info.module_cls, sample, training, dtype, device)


def _module_case(kind: Any, sample: Any, training: bool, dtype: torch.dtype, device: str) -> Case:
    made, given = sample.constructor_input, sample.forward_input
    torch.manual_seed(5)
    original = kind(*made.args, **made.kwargs).to(device).to(dtype).train(training)
    values, spec = pytree.tree_flatten(_open((tuple(given.args), dict(given.kwargs))))

    def run(wrap: Wrap, values: list[Any], change: Change) -> dict[str, Any]:
        module = copy.deepcopy(original)
        for tensor in (*module.parameters(), *module.buffers()):
            if not nn.parameter.is_lazy(tensor):
                tensor.data = change([tensor.detach()])[0]
        args, kwargs = _close(pytree.tree_unflatten(values, spec))
        call = wrap(module)
        parts: dict[str, Any] = {}
        torch.manual_seed(7)
        for which in ("first", "second"):
            result = _open(call(*args, **kwargs))
            leaves = [*_leaves(values), *module.parameters()]
            parts[f"{which} result"] = result
            parts[f"{which} gradients"] = gradients(result, leaves)
        parts["buffers"] = dict(module.named_buffers())
        return parts | {"inputs": _detached(values), "random numbers": torch.rand(3)}

    return Case(values, run)


# --- optimizers ----------------------------------------------------------------------------------


def _optimizers() -> dict[str, Any]:
    """`optim_db` by name."""
    from torch.testing._internal.common_optimizers import optim_db

    return {info.name: info for info in optim_db}


def _optimizer_cases(name: str, info: Any, dtype: torch.dtype, device: str) -> Iterator[Case]:
    """All sets of options with every implementation; the first again with a closure."""
    from torch.testing._internal.common_optimizers import (
        _get_optim_inputs_including_global_cliquey_kwargs,
    )

    if dtype.is_complex and not info.supports_complex:
        return
    inputs = _get_optim_inputs_including_global_cliquey_kwargs(device, dtype, info)
    for index, given in enumerate(inputs):
        if not info.step_requires_closure:
            yield _optimizer_case(info, given.kwargs, dtype, device, closure=False)
        if index == 0 or info.step_requires_closure:
            yield _optimizer_case(info, given.kwargs, dtype, device, closure=True)


def _as_tensor(value: Any) -> Any:
    """A part of a state; numbers (of LBFGS's line search) were computed in float32, too."""
    return torch.tensor(value) if type(value) is float else _detached([value])[0]


def _optimizer_case(
    info: Any, options: dict[str, Any], dtype: torch.dtype, device: str, *, closure: bool
) -> Case:
    """Some steps with given gradients, in two groups where there may be two; the rate falls."""
    shapes = [(4, 3), (3, 5), (2, 2)] if info.name == "Muon" else [(4, 3), (3,), (2, 2)]
    torch.manual_seed(5)
    wanted = bool(options.get("differentiable"))
    params = [torch.randn(s, dtype=dtype, device=device, requires_grad=True) for s in shapes]
    grads = [torch.randn(s, dtype=dtype, device=device) for _ in range(STEPS) for s in shapes]
    if info.only_supports_sparse_grads:
        grads = [g.to_sparse() for g in grads]
    values = [*params, *(g.requires_grad_(wanted) for g in grads)]

    def run(wrap: Wrap, values: list[Any], change: Change) -> dict[str, Any]:
        # A differentiable step writes to its parameters as autograd sees it: they are no leaves.
        made = [v.clone() if wanted else nn.Parameter(v.detach()) for v in values[: len(shapes)]]
        unused = nn.Parameter(torch.ones(2, 2, dtype=dtype, device=device))
        groups: Any = [{"params": made[:2]}, {"params": [*made[2:], unused], "lr": 0.03}]
        if not info.supports_param_groups or info.step_requires_closure:
            groups = made
        rates = {k: change([v])[0] for k, v in options.items()}
        optimizer = info.optim_cls(groups, **rates)
        given = values[len(shapes) :]

        def loss() -> Tensor:
            optimizer.zero_grad()
            distances = [(p - g).abs().pow(2).sum() for p, g in zip(made, given, strict=False)]
            total = torch.stack(distances).sum() * (-1 if options.get("maximize") else 1)
            total.backward()  # type: ignore[no-untyped-call]
            return total

        def step() -> Any:
            return optimizer.step(loss) if closure else optimizer.step()

        call = wrap(step)
        losses = []
        for index in range(STEPS):
            for p, g in zip(made, given[index * len(shapes) :], strict=False):
                p.grad = g if wanted else g.clone()
            losses.append(call())
            for group in optimizer.param_groups:
                rate = group["lr"]
                group["lr"] = rate.mul_(0.9) if isinstance(rate, Tensor) else rate * 0.9
        state = optimizer.state_dict()
        return {
            "losses": losses,
            "parameters": _detached(made),
            "state": pytree.tree_map(_as_tensor, state["state"]),
            "groups": state["param_groups"],
            "gradients": gradients(made, _leaves(values)) if wanted else None,
        }

    # (Muon makes its steps orthogonal in bfloat16.)
    return Case(values, run, torch.bfloat16 if info.name == "Muon" else None)


# --- operators -----------------------------------------------------------------------------------


def _functions() -> dict[str, Any]:
    """`autograd_function_db` by name."""
    from torch.testing._internal.autograd_function_db import autograd_function_db

    return by_name(autograd_function_db)


def _custom() -> dict[str, Any]:
    """`custom_op_db` by name."""
    from torch.testing._internal.custom_op_db import custom_op_db

    return by_name(custom_op_db)


def _higher_order() -> dict[str, Any]:
    """`hop_db` by name."""
    from torch.testing._internal.hop_db import hop_db

    return by_name(hop_db)


def _operator_cases(name: str, op: Any, dtype: torch.dtype, device: str) -> Iterator[Case]:
    differentiable = dtype.is_floating_point or dtype.is_complex
    grads = op.supports_autograd and differentiable and dtype in op.backward_dtypes
    for sample in op.sample_inputs(device, dtype, requires_grad=grads):
        yield _operator_case(op.get_op(), sample, grads)


def _operator_case(function: Any, sample: Any, grads: bool) -> Case:
    values, spec = pytree.tree_flatten((sample.input, tuple(sample.args), dict(sample.kwargs)))
    process = sample.output_process_fn_grad or (lambda result: result)

    def call(first: Any, *args: Any, **kwargs: Any) -> Any:
        return function(first, *args, **kwargs)

    def run(wrap: Wrap, values: list[Any], change: Change) -> dict[str, Any]:
        first, args, kwargs = pytree.tree_unflatten(values, spec)
        torch.manual_seed(7)
        result = wrap(call)(first, *args, **kwargs)
        taken = gradients(process(result), _leaves(values)) if grads else None
        return {"result": result, "gradients": taken, "inputs": _detached(values)}

    return Case(values, run)


# --- all -----------------------------------------------------------------------------------------

# For each database: its entries by name, and the cases of one.
DATABASES: dict[str, tuple[Callable[[], dict[str, Any]], Callable[..., Iterator[Case]]]] = {
    "modules": (_modules, _module_cases),
    "optimizers": (_optimizers, _optimizer_cases),
    "functions": (_functions, _operator_cases),
    "custom": (_custom, _operator_cases),
    "higher-order": (_higher_order, _operator_cases),
}


def entries(database: str) -> dict[str, Any]:
    """The entries of one database by name."""
    operators()  # prepares the import of PyTorch's test utilities
    return DATABASES[database][0]()


def dtypes_of(database: str, entry: Any) -> set[torch.dtype] | None:
    """The dtypes that a database lists for an entry on the CPU; None where it does not say, or
    says less than eager can."""
    return None if database in ("modules", "optimizers") else set(entry.dtypes)


def cases(database: str, name: str, entry: Any, dtype: torch.dtype, device: str) -> Iterator[Case]:
    """All cases of one entry."""
    return DATABASES[database][1](name, entry, dtype, device)
