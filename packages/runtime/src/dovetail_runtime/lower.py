"""A `Plan` as the flat tables that the native executor reads: names become slot numbers, sizes
become value numbers, steps become tuples that begin with an operation code."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from dovetail_runtime import plan as p
from dovetail_runtime.aten_args import split_op_name
from dovetail_runtime.cpp_build import CppFunction
from dovetail_runtime.lifetimes import early_launches, input_releases
from dovetail_runtime.sizes import SizeTable, storage_bytes

# Operation codes; native/program.h has the same list.
ALLOCATE_SLAB, ALLOCATE, VIEW, LAUNCH_CPP, LAUNCH_TRITON, CALL_ATEN = range(6)
FREE, BIND, ASSERT, CHOOSE, WHILE, FREE_SLAB = range(6, 12)
# Kinds of an ATen argument (and of a plan's output, where they apply).
LITERAL, TENSOR, SIZE, LIST, INPUT, FLOAT = range(6)
# Kinds of a kernel's argument; native/program.h has the same list.
POINTER, ALIGNED_POINTER, INTEGER, ELEMENT = range(4)
# In the place of the dimension that a symbol is bound to: the number itself.
_INT, _FLOAT = -1, -2


class PlanError(ValueError):
    """The plan contradicts itself: an unknown name, a slab tensor that leaves the call, ..."""


@dataclass(frozen=True)
class TritonBinary:
    """A `TritonKernel` compiled for one device."""

    entry: str
    cubin: bytes
    # Per launched parameter: "pointer", "aligned pointer" (a launch copies an input that does not
    # begin at a multiple of 16), "i32" or "i64".
    parameters: tuple[str, ...]
    shared_bytes: int
    threads: int
    scratch_parameters: int  # pointers to append: to global scratch memory, and null
    scratch_bytes: int = 0  # of global scratch memory for each program, aligned to 128 bytes


@dataclass(frozen=True)
class _Slot:
    number: int
    name: str
    root: str  # the allocation, input, constant or result whose storage this is
    slab: int | None  # the slab it lies in, by its position in the plan
    owned_outside: bool = False  # an input or a constant
    input_index: int | None = None


class _Lowering:
    def __init__(
        self,
        plan: p.Plan,
        functions: Mapping[str, CppFunction],
        binaries: Mapping[str, TritonBinary],
    ) -> None:
        self.plan = plan
        self.functions = functions
        self.binaries = binaries
        self.sizes = SizeTable()
        self.slots: dict[str, _Slot] = {}
        self.slabs = p.slabs_of(plan)
        self.freed: set[str] = set()
        self.freed_slabs: set[int] = set()

    def lower(self) -> dict[str, Any]:
        plan = self.plan
        bindings = [
            (
                self.sizes.bind(b.name),
                b.input,
                b.dim if b.dim is not None else _FLOAT if b.is_float else _INT,
            )
            for b in plan.symbols
        ]
        for name, size in plan.definitions:
            self.sizes.define(name, size)
        inputs: list[tuple[str, int, tuple[Any, ...] | None]] = []
        for index, declared in enumerate(plan.inputs):
            if declared.spec is None:
                inputs.append((declared.name, -1, None))
            else:
                slot = self._define(declared.name, declared.name, outside=True, input_index=index)
                inputs.append((declared.name, slot, self._spec(declared.spec)))
        constants = [(self._define(c.name, c.name, outside=True), c.value) for c in plan.constants]
        slabs = [(torch.device(d), self.sizes.number(size)) for d, size in plan.slab_bytes]
        if any(self.sizes.is_late(number) for _, number in slabs):
            raise PlanError(f"{plan.name}: a slab's size must be known when a call begins")
        early = early_launches(plan.steps)
        steps = [self._step(s, e) for s, e in zip(plan.steps, early, strict=True)]
        outputs = [self._output(output) for output in plan.outputs]
        written = [*plan.mutated, *(s.target for s in plan.steps if isinstance(s, p.CopyInto))]
        mutated = {self.slots[self.slots[name].root] for name in written}
        return {
            "name": plan.name,
            "values": [0 if v is None else v for v in self.sizes.values],
            "static": [v is not None for v in self.sizes.values],
            "size_program": self.sizes.programs[0],
            "late_programs": self.sizes.programs[1:],
            "bindings": bindings,
            "inputs": inputs,
            "constants": constants,
            "slabs": slabs,
            "slot_names": [slot.name for slot in self.slots.values()],
            "steps": steps,
            "outputs": outputs,
            "mutated": sorted(slot.number for slot in mutated if slot.owned_outside),
            "releases": [
                (position, tuple(self.slots[name].number for name in names))
                for position, names in input_releases(plan)
            ],
        }

    # --- names ---

    def _define(
        self, name: str, root: str, *, slab: int | None = None, outside: bool = False,
        input_index: int | None = None,
    ) -> int:  # fmt: skip
        if name in self.slots:
            raise PlanError(f"{self.plan.name}: two tensors are called {name!r}")
        number = len(self.slots)
        self.slots[name] = _Slot(number, name, root, slab, outside, input_index)
        return number

    def _slot(self, name: str) -> _Slot:
        slot = self.slots.get(name)
        if slot is None:
            raise PlanError(f"{self.plan.name}: no tensor is called {name!r} at this point")
        if name in self.freed:
            raise PlanError(f"{self.plan.name}: {name!r} is used after it was freed")
        return slot

    def _tensor(self, name: str) -> int:
        return self._slot(name).number

    # --- sizes ---

    def _number(self, size: p.Size) -> int:
        return self.sizes.number(size)

    def _numbers(self, sizes: tuple[p.Size, ...]) -> tuple[int, ...]:
        return tuple(self.sizes.number(size) for size in sizes)

    def _spec(self, spec: p.TensorSpec) -> tuple[Any, ...]:
        if len(spec.shape) != len(spec.stride):
            raise PlanError(f"{self.plan.name}: {spec} has {len(spec.stride)} strides")
        return (
            spec.dtype,
            spec.device,
            self._numbers(spec.shape),
            self._numbers(spec.stride),
            self._number(spec.offset),
        )

    # --- steps ---

    def _step(self, step: p.Step, early: bool) -> tuple[Any, ...]:
        match step:
            case p.Allocate():
                return self._allocate(step)
            case p.View():
                base = self._slot(step.base)
                root = self.slots[base.root]
                slot = self._define(step.name, root.name, slab=base.slab)
                return (VIEW, slot, root.number, self._spec(step.spec))
            case p.LaunchCpp():
                tensors = tuple(self._tensor(name) for name in step.tensors)
                told = f"{step.kernel}\n{step.line}" if step.line else step.kernel
                return (
                    LAUNCH_CPP, told, self._address(step.kernel), tensors,
                    self._numbers(step.sizes), self._number(step.work), max(1, step.grain),
                    step.label or step.kernel,
                )  # fmt: skip
            case p.LaunchTriton():
                return self._launch_triton(step, early)
            case p.CallAten():
                return self._call_aten(step)
            case p.CopyInto():
                copy = p.CallAten("aten::copy_", (p.Ref(step.target), p.Ref(step.source)))
                return self._call_aten(copy)
            case p.Free():
                slots = [self._slot(name) for name in step.names]
                self.freed.update(step.names)
                return (FREE, tuple(slot.number for slot in slots if not slot.owned_outside))
            case p.FreeSlab():
                freed = self._slab(step.device, step.slab, "FreeSlab")
                self.freed.update(s.name for s in self.slots.values() if s.slab == freed)
                self.freed_slabs.add(freed)
                return (FREE_SLAB, freed)
            case p.Bind():
                slot, late = self._tensor(step.tensor), len(self.sizes.programs) - 1
                number = self.sizes.bind_late(step.name)
                return (BIND, slot, _INT if step.dim is None else step.dim, number, late)
            case p.Assert():
                message = tuple(step.message.split("{}")) if step.numbers else (step.message,)
                if len(message) != len(step.numbers) + 1:
                    raise PlanError(f"{self.plan.name}: not one number for each {{}} of {step!r}")
                condition, numbers = self._number(step.condition), self._numbers(step.numbers)
                return (ASSERT, condition, message, numbers, step.error == "IndexError")
            case p.Choose():
                return self._choose(step)
            case p.While():
                return self._while(step)
        raise PlanError(f"{self.plan.name}: unknown step {step!r}")

    def _allocate(self, step: p.Allocate) -> tuple[Any, ...]:
        spec = self._spec(step.spec)
        if step.slab_offset is None:
            over = -1 if step.over is None else self._over(step.over)
            return (ALLOCATE, self._define(step.name, step.name), spec, over)
        if step.over is not None:
            raise PlanError(f"{self.plan.name}: {step.name!r} has a place in a slab, and another")
        slab = self._slab(str(step.spec.device), step.slab, repr(step.name))
        if isinstance(step.slab_offset, int) and step.slab_offset % 64:
            raise PlanError(f"{self.plan.name}: {step.name!r} is not 64-byte aligned in its slab")
        self._check_inside_slab(step, self.plan.slab_bytes[slab][1])
        slot = self._define(step.name, step.name, slab=slab)
        return (ALLOCATE_SLAB, slot, spec, slab, self._number(step.slab_offset))

    def _over(self, name: str) -> int:
        """The input whose memory a tensor may take."""
        slot = self._slot(name)
        if slot.input_index is None or name in self.plan.mutated or name in self.plan.outputs:
            raise PlanError(f"{self.plan.name}: {name!r} is no input that a call could give away")
        return slot.number

    def _slab(self, device: str, number: int, who: str) -> int:
        """A slab that somebody wants, by its position in the plan."""
        found = self.slabs.get((device, number))
        if found is None:
            raise PlanError(f"{self.plan.name}: {who} wants slab {number} on {device}: none")
        if found in self.freed_slabs:
            raise PlanError(f"{self.plan.name}: {who} wants slab {number} on {device}: freed")
        return found

    def _check_inside_slab(self, step: p.Allocate, slab: p.Size) -> None:
        """Where all sizes are known; the executor checks the others if `check_inputs` is on."""
        spec = step.spec
        shape = [n for n in spec.shape if isinstance(n, int)]
        stride = [n for n in spec.stride if isinstance(n, int)]
        known = len(shape) == len(spec.shape) and len(stride) == len(spec.stride)
        ends = (slab, step.slab_offset, spec.offset)
        if not known or not all(isinstance(n, int) for n in ends):
            return
        slab_bytes, start, offset = (int(n) for n in ends if isinstance(n, int))
        end = start + storage_bytes(shape, stride, offset, spec.dtype.itemsize)
        if start < 0 or end > slab_bytes:
            raise PlanError(
                f"{self.plan.name}: {step.name!r} takes bytes {start} to {end} of a slab of "
                f"{slab_bytes}"
            )

    def _address(self, symbol: str) -> int:
        if symbol not in self.functions:
            raise PlanError(f"{self.plan.name}: no compiled C++ kernel is called {symbol!r}")
        return self.functions[symbol].address

    def _launch_triton(self, step: p.LaunchTriton, early: bool) -> tuple[Any, ...]:
        binary = self.binaries.get(step.kernel)
        if binary is None:
            raise PlanError(
                f"{self.plan.name}: no compiled Triton kernel is called {step.kernel!r}"
            )
        if len(binary.parameters) != len(step.args):
            raise PlanError(
                f"{self.plan.name}: {step.kernel} takes {len(binary.parameters)} arguments, "
                f"{len(step.args)} given"
            )
        args = []
        for kind, argument in zip(binary.parameters, step.args, strict=True):
            named, pointer = isinstance(argument, str), kind.endswith("pointer")
            if pointer > named or (named and kind == "i32"):
                raise PlanError(f"{self.plan.name}: {step.kernel}: {argument!r} given for a {kind}")
            if isinstance(argument, str):
                form = (ALIGNED_POINTER if kind[0] == "a" else POINTER) if pointer else ELEMENT
                args.append((form, self._tensor(argument)))
            else:
                args.append((INTEGER, self._number(argument)))
        return (
            LAUNCH_TRITON, step.kernel, binary.entry, binary.cubin, tuple(args),
            self._numbers(step.grid), binary.shared_bytes, binary.threads,
            binary.scratch_parameters, binary.scratch_bytes, step.label or step.kernel, early,
        )  # fmt: skip

    def _call_aten(self, step: p.CallAten) -> tuple[Any, ...]:
        name, overload = split_op_name(step.op)
        args = tuple(self._argument(a) for a in step.args)
        kwargs = {key: self._argument(a) for key, a in step.kwargs}
        outputs = tuple(-1 if o is None else self._define(o, o) for o in step.outputs)
        if step.expected and len(step.expected) != len(step.outputs):
            raise PlanError(
                f"{self.plan.name}: {step.op}: {len(step.expected)} expected results beside "
                f"{len(step.outputs)} outputs"
            )
        expected = tuple(None if e is None else self._spec(e) for e in step.expected)
        return (CALL_ATEN, name, overload, args, kwargs, outputs, expected, step.line)

    def _choose(self, step: p.Choose) -> tuple[Any, ...]:
        predicate = self._tensor(step.predicate)
        arguments = self._arguments(step.args)
        tables = tuple(
            self._inner(branch, step.args, len(step.outputs)) for branch in step.branches
        )
        outputs = tuple(-1 if o is None else self._define(o, o) for o in step.outputs)
        return (CHOOSE, predicate, tables, arguments, outputs)

    def _while(self, step: p.While) -> tuple[Any, ...]:
        carried = step.args[: len(step.outputs)]
        if len(carried) < len(step.outputs) or not all(isinstance(a, str) for a in carried):
            raise PlanError(f"{self.plan.name}: a loop carries a tensor for each output")
        arguments = self._arguments(step.args)
        condition = self._inner(step.condition, step.args, 1)
        body = self._inner(step.body, step.args, len(step.outputs))
        outputs = tuple(-1 if o is None else self._define(o, o) for o in step.outputs)
        return (WHILE, condition, body, arguments, outputs)

    def _arguments(self, args: Sequence[str | p.Size | p.FloatOf]) -> tuple[tuple[int, int], ...]:
        """What a plan within this one is given."""
        return tuple(
            (TENSOR, self._tensor(a))
            if isinstance(a, str)
            else (SIZE, self._number(a.bits if isinstance(a, p.FloatOf) else a))
            for a in args
        )

    def _inner(self, plan: p.Plan, args: Sequence[str | p.Size | p.FloatOf], outputs: int) -> Any:
        """The tables of a plan within this one, which takes `args`."""
        if plan.kernels or plan.constants:
            raise PlanError(f"{plan.name}: a plan within another with kernels or constants")
        tensors = [isinstance(output, str) for output in plan.outputs]
        if not all(tensors) or len(tensors) != outputs:
            raise PlanError(f"{plan.name}: a plan within another gives a tensor for each output")
        kinds = [declared.spec is not None for declared in plan.inputs]
        if kinds != [isinstance(argument, str) for argument in args]:
            raise PlanError(f"{plan.name}: other inputs than the step that runs it has")
        return lower(plan, self.functions, self.binaries)

    def _argument(self, argument: p.AtenArg) -> tuple[int, Any]:
        if isinstance(argument, p.Ref):
            return (TENSOR, self._tensor(argument.name))
        if isinstance(argument, p.SizeExpr):
            return (SIZE, self._number(argument))
        if isinstance(argument, p.FloatOf):
            return (FLOAT, self._number(argument.bits))
        if isinstance(argument, (tuple, list)):
            return (LIST, tuple(self._argument(a) for a in argument))
        return (LITERAL, argument)

    def _output(self, output: str | p.Size | p.FloatOf | None) -> tuple[int, int]:
        if output is None:
            return (LITERAL, 0)
        if isinstance(output, p.FloatOf):
            return (FLOAT, self._number(output.bits))
        if not isinstance(output, str):
            return (SIZE, self._number(output))
        slot = self._slot(output)
        if slot.slab is not None:
            raise PlanError(
                f"{self.plan.name}: output {output!r} lives in the slab, which ends with the call"
            )
        if slot.input_index is not None:
            return (INPUT, slot.input_index)
        return (TENSOR, slot.number)


def lower(
    plan: p.Plan, functions: Mapping[str, CppFunction], binaries: Mapping[str, TritonBinary]
) -> dict[str, Any]:
    """The native executor's tables for `plan`, whose kernels are `functions` and `binaries`. Who
    runs them holds the functions. Raises `PlanError` where the plan contradicts itself."""
    return _Lowering(plan, functions, binaries).lower()
