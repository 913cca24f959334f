"""The oracle: a plain-Python executor of a `Plan`, slow and simple.

It obeys the same contract as the native executor. It fills the slab and every allocation with
0xFF bytes (NaN in floating point), so that a kernel that reads what nobody wrote shows.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, cast

import torch
from dovetail_runtime.aten_args import call_with_numbers, element, python_value, resolve_op
from dovetail_runtime.cpp_build import CppFunction
from dovetail_runtime.native import executor_module
from dovetail_runtime.plan import (
    Allocate,
    Assert,
    Bind,
    CallAten,
    Choose,
    CopyInto,
    CppKernel,
    FloatOf,
    Free,
    FreeSlab,
    LaunchCpp,
    LaunchTriton,
    Plan,
    Size,
    TensorSpec,
    TritonKernel,
    View,
    While,
    slabs_of,
)
from dovetail_runtime.sizes import (
    bind_symbols,
    evaluate,
    float_from_bits,
    storage_bytes,
    symbols_of,
)

Number = int | float
Output = torch.Tensor | Number | None

# Runs a Triton kernel: (kernel, arguments in order of its non-constexpr parameters, grid).
TritonLauncher = Callable[[TritonKernel, Sequence[torch.Tensor | int], tuple[int, int, int]], None]


@dataclass
class ReferenceExecutor:
    """Runs `plan` step by step in Python.

    `functions` maps a `CppKernel`'s symbol to the compiled function; `launch_triton` runs
    Triton kernels (under Triton's interpreter on a machine without a GPU).
    """

    plan: Plan
    functions: Mapping[str, CppFunction] = field(default_factory=dict)
    launch_triton: TritonLauncher | None = None

    def __call__(self, *inputs: torch.Tensor | Number) -> tuple[Output, ...]:
        """Run the plan once."""
        return _Run(self, inputs).execute()


class _Run:
    """The state of one execution."""

    def __init__(
        self, executor: ReferenceExecutor, inputs: Sequence[torch.Tensor | Number]
    ) -> None:
        plan = executor.plan
        if len(inputs) != len(plan.inputs):
            raise TypeError(f"{plan.name}: {len(plan.inputs)} inputs expected, {len(inputs)} given")
        self.executor = executor
        self.plan = plan
        self.symbols = bind_symbols(plan.symbols, inputs)
        self._define()
        self.tensors: dict[str, torch.Tensor | None] = {c.name: c.value for c in plan.constants}
        # Where the compiler took inputs, results of calls and views to begin in their storages.
        self.begins: dict[str, Size] = {}
        for declared, value in zip(plan.inputs, inputs, strict=True):
            if isinstance(value, torch.Tensor):
                self.tensors[declared.name] = value
                if declared.spec is not None:
                    self.begins[declared.name] = declared.spec.offset
        self.slabs = {
            slab: _filled(evaluate(plan.slab_bytes[at][1], self.symbols), torch.device(slab[0]))
            for slab, at in slabs_of(plan).items()
        }
        self.kernels = {kernel.symbol: kernel for kernel in plan.kernels}

    def execute(self) -> tuple[Output, ...]:
        with torch.no_grad():
            for index, step in enumerate(self.plan.steps):
                try:
                    self._step(step)
                except Exception as error:
                    error.add_note(f"in step {index} of plan {self.plan.name}: {step}")
                    raise
            for name in self.plan.mutated:
                torch.autograd.graph.increment_version(self._tensor(name))
        return tuple(self._output(output) for output in self.plan.outputs)

    def _define(self) -> None:
        """The definitions whose symbols are known by now."""
        for name, size in self.plan.definitions:
            if symbols_of(size) <= self.symbols.keys():
                self.symbols[name] = evaluate(size, self.symbols)

    def _output(self, output: str | Size | FloatOf | None) -> Output:
        if output is None:
            return None
        if isinstance(output, FloatOf):
            return float_from_bits(self._int(output.bits))
        if isinstance(output, str):
            return self.tensors[output]
        return self._int(output)

    def _step(self, step: Any) -> None:
        match step:
            case Allocate():
                self._allocate(step)
            case View():
                base = self._tensor(step.base)
                moved = self._moved_bytes(step.base) // step.spec.dtype.itemsize
                self.tensors[step.name] = self._over(base.untyped_storage(), step.spec, moved)
                self.begins[step.name] = step.spec.offset
            case LaunchCpp():
                self._launch_cpp(step)
            case LaunchTriton():
                self._launch_triton(step)
            case CallAten():
                self._call_aten(step)
            case CopyInto():
                self._tensor(step.target).copy_(self._tensor(step.source))
            case Choose():
                self._choose(step)
            case While():
                self._while(step)
            case Free():
                for name in step.names:
                    self.tensors.pop(name)
            case FreeSlab():
                gone = self.slabs.pop((step.device, step.slab))
                torch.empty(0, dtype=torch.uint8, device=gone.device).set_(gone).fill_(0xFF)
            case Bind():
                self.symbols[step.name] = _seen(self._tensor(step.tensor), step.dim)
                self._define()
            case Assert():
                if not self._int(step.condition):
                    numbers = self._ints(step.numbers)
                    error = IndexError if step.error == "IndexError" else RuntimeError
                    raise error(step.message.format(*numbers) if numbers else step.message)
            case _:
                raise TypeError(f"unknown step {step!r}")

    def _allocate(self, step: Allocate) -> None:
        nbytes = storage_bytes(
            self._ints(step.spec.shape),
            self._ints(step.spec.stride),
            self._int(step.spec.offset),
            step.spec.dtype.itemsize,
        )
        if step.slab_offset is None:
            storage = _filled(nbytes, step.spec.device)
        else:
            start = self._int(step.slab_offset)
            slab = self.slabs[str(step.spec.device), step.slab]
            if start % 64 or start + nbytes > slab.nbytes():
                raise ValueError(
                    f"{step.name} takes bytes {start} to {start + nbytes} of a slab of "
                    f"{slab.nbytes()}; a slab offset must be a multiple of 64"
                )
            storage = slab[start : start + nbytes] if nbytes else _filled(0, step.spec.device)
        self.tensors[step.name] = self._over(storage, step.spec)

    def _moved_bytes(self, name: str) -> int:
        """By how much a tensor begins further on in its storage than the compiler took it to: an
        input may be another piece of a larger tensor than the first call's, a call's result the
        piece that its argument was of another storage."""
        begin = self.begins.get(name)
        if begin is None:
            return 0
        tensor = self._tensor(name)
        moved = int(tensor.storage_offset()) - self._int(begin)
        return moved * tensor.dtype.itemsize

    def _over(
        self, storage: torch.UntypedStorage, spec: TensorSpec, moved: int = 0
    ) -> torch.Tensor:
        empty = torch.empty(0, dtype=spec.dtype, device=spec.device)
        return empty.set_(
            storage,
            self._int(spec.offset) + moved,
            self._ints(spec.shape),
            self._ints(spec.stride),
        )

    def _launch_cpp(self, step: LaunchCpp) -> None:
        kernel = self.kernels[step.kernel]
        assert isinstance(kernel, CppKernel), kernel
        work = self._int(step.work)
        if work <= 0:
            return
        function = self.executor.functions[kernel.symbol]
        pointers = (ctypes.c_void_p * max(1, len(step.tensors)))(
            *[self._tensor(name).data_ptr() for name in step.tensors]
        )
        sizes = (ctypes.c_int64 * max(1, len(step.sizes)))(*self._ints(step.sizes))
        # In two chunks where allowed, so that a kernel that ignores its range shows.
        middle = work // 2 if work // 2 >= step.grain else work
        chunks = [(0, middle), (middle, work)] if middle < work else [(0, work)]
        for begin, end in chunks:
            executor_module().call_kernel(
                function.address,
                ctypes.addressof(pointers),
                ctypes.addressof(sizes),
                begin,
                end,
            )

    def _launch_triton(self, step: LaunchTriton) -> None:
        kernel = self.kernels[step.kernel]
        assert isinstance(kernel, TritonKernel), kernel
        if self.executor.launch_triton is None:
            raise ValueError(f"{step.kernel}: no launcher for Triton kernels was given")
        kinds = [kind for _, kind in kernel.signature if kind != "constexpr"]
        arguments = [self._given(a, k) for a, k in zip(step.args, kinds, strict=True)]
        x, y, z = self._ints(step.grid)
        if x and y and z:
            self.executor.launch_triton(kernel, arguments, (x, y, z))

    def _given(self, argument: str | Size, kind: str) -> torch.Tensor | int:
        """What a launch passes for a parameter of this kind."""
        if not isinstance(argument, str):
            return self._int(argument)
        tensor = self._tensor(argument)
        if not kind.startswith("*"):
            return element(tensor)
        # (Kernels, which get an address, know no complex numbers but pairs of real ones.)
        return torch.view_as_real(tensor) if tensor.is_complex() else tensor

    def _call_aten(self, step: CallAten) -> None:
        args = [python_value(a, self.tensors, self.symbols) for a in step.args]
        kwargs = {k: python_value(a, self.tensors, self.symbols) for k, a in step.kwargs}
        result = call_with_numbers(resolve_op(step.op), args, kwargs)
        results = _flatten(result)
        for position, (name, value) in enumerate(zip(step.outputs, results, strict=False)):
            if name is not None:
                if isinstance(value, torch.Tensor):  # memory holds the values that are meant
                    value = value.resolve_conj().resolve_neg()
                if step.expected and isinstance(value, torch.Tensor):
                    value = self._as_promised(step, value, step.expected[position])
                if value is not None and not isinstance(value, torch.Tensor):
                    raise TypeError(f"{step.op} returns {value!r}, not a tensor, for {name}")
                self.tensors[name] = value
                self.begins[name] = 0

    def _choose(self, step: Choose) -> None:
        branch = step.branches[0 if bool(self._tensor(step.predicate)) else 1]
        self._keep(step.outputs, self._inner(branch, self._arguments(step.args)))

    def _while(self, step: While) -> None:
        args = self._arguments(step.args)
        count = len(step.outputs)
        carried = [cast(Any, value).clone() for value in args[:count]]
        while bool(self._inner(step.condition, [*carried, *args[count:]])[0]):
            carried = self._inner(step.body, [*carried, *args[count:]])
        self._keep(step.outputs, carried)

    def _inner(self, plan: Plan, args: Sequence[torch.Tensor | Number]) -> list[Any]:
        """What a plan within this one, which has its kernels, gives: tensors of their own."""
        found = replace(self.executor, plan=replace(plan, kernels=self.plan.kernels))(*args)
        return [cast(Any, v).clone() if any(v is arg for arg in args) else v for v in found]

    def _arguments(self, args: Sequence[str | Size | FloatOf]) -> list[torch.Tensor | Number]:
        return [
            self._tensor(a)
            if isinstance(a, str)
            else float_from_bits(self._int(a.bits))
            if isinstance(a, FloatOf)
            else self._int(a)
            for a in args
        ]

    def _keep(self, names: Sequence[str | None], values: Sequence[Output]) -> None:
        for name, value in zip(names, values, strict=True):
            if name is not None:
                assert isinstance(value, torch.Tensor)
                self.tensors[name] = value
                self.begins[name] = 0

    def _as_promised(
        self, step: CallAten, value: torch.Tensor, spec: TensorSpec | None
    ) -> torch.Tensor:
        """The result, laid out again if the library chose another layout for it."""
        if spec is None:
            return value
        shape, stride = self._ints(spec.shape), self._ints(spec.stride)
        if value.dtype is not spec.dtype or list(value.shape) != shape:
            raise RuntimeError(
                f"{step.op} returned a {value.dtype} tensor of shape {tuple(value.shape)} and "
                f"strides {value.stride()}; the graph was compiled for {spec}"
            )
        strides = zip(shape, stride, value.stride(), strict=True)
        if 0 in shape or all(size == 1 or wanted == got for size, wanted, got in strides):
            return value
        return torch.empty_strided(shape, stride, dtype=spec.dtype, device=spec.device).copy_(value)

    def _tensor(self, name: str) -> torch.Tensor:
        tensor = self.tensors[name]
        if tensor is None:
            raise ValueError(f"{name} is an undefined tensor")
        return tensor

    def _int(self, size: Size) -> int:
        return evaluate(size, self.symbols)

    def _ints(self, sizes: Sequence[Size]) -> list[int]:
        return [evaluate(size, self.symbols) for size in sizes]


def _seen(tensor: torch.Tensor, dim: int | None) -> int:
    """What a `Bind` step reads of a tensor."""
    return tensor.shape[dim] if dim is not None else element(tensor)


def _filled(nbytes: int, device: torch.device) -> torch.UntypedStorage:
    return torch.full((nbytes,), 0xFF, dtype=torch.uint8, device=device).untyped_storage()


def _flatten(result: Any) -> list[Any]:
    if isinstance(result, (tuple, list)):
        return [value for item in result for value in _flatten(item)]
    return [result]
