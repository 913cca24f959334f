"""A plan as a Python program that people can read, edit and run."""

from __future__ import annotations

import keyword
import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import torch

from dovetail_runtime import plan as p
from dovetail_runtime.aten_args import resolve_op
from dovetail_runtime.program_support import header_name, keep_header
from dovetail_runtime.sizes import size_text, symbols_of

CONSTANTS_FILE = "constants.pt"


def as_python(plan: p.Plan, *, symbol_values: dict[str, int] | None = None) -> str:
    """`plan` as a runnable program. It reads constants from `constants.pt` beside it (see
    `write_program`), and the header of its C++ kernels from there or from the cache. Its main part
    runs it on random inputs, with size symbols as given in `symbol_values` or 8."""
    return _Writer(plan, symbol_values or {}).text()


def write_program(
    plan: p.Plan, directory: Path | str, *, symbol_values: dict[str, int] | None = None
) -> Path:
    """Write the program, its constants and the headers of its C++ kernels into `directory`; the
    program's path."""
    target = Path(directory)
    target.mkdir(parents=True, exist_ok=True)
    if plan.constants:
        constants = {c.name: c.value.detach() for c in plan.constants}
        torch.save(constants, target / CONSTANTS_FILE)
    for text in _headers(plan):
        (target / header_name(text)).write_text(text)
    program = target / "program.py"
    program.write_text(as_python(plan, symbol_values=symbol_values))
    return program


class _Writer:
    def __init__(self, plan: p.Plan, symbol_values: dict[str, int]) -> None:
        self.plan = plan
        self.symbol_values = symbol_values
        self.names: dict[str, str] = {}
        self.bound: set[str] = set()  # symbols known by the line that is written
        self.taken: set[str] = {"torch", "rt", "cpp", "triton_kernels", "constants", "main"}

    def text(self) -> str:
        plan = self.plan
        lines = [f'"""Plan {plan.name}, for {plan.target}."""', ""]
        lines += ["from pathlib import Path", ""] if plan.constants else []
        lines += ["import torch", "", "from dovetail_runtime import program_support as rt", ""]
        lines += self._kernels()
        if plan.constants:
            lines.append(f'constants = torch.load(Path(__file__).parent / "{CONSTANTS_FILE}")')
        lines += ["", f"def {self._function()}({', '.join(self._parameters())}):"]
        lines += ["    " + line for line in self._body()]
        lines += ["", ""]
        lines += self._main()
        return "\n".join(lines) + "\n"

    # --- names ---

    def _name(self, name: str) -> str:
        if name not in self.names:
            made = re.sub(r"\W", "_", name)
            if not made or made[0].isdigit() or keyword.iskeyword(made):
                made = f"v_{made}"
            while made in self.taken:
                made += "_"
            self.taken.add(made)
            self.names[name] = made
        return self.names[name]

    def _function(self) -> str:
        return self._name(f"run {self.plan.name}")

    def _parameters(self) -> list[str]:
        return [self._name(declared.name) for declared in self.plan.inputs]

    # --- parts ---

    def _kernels(self) -> list[str]:
        lines: list[str] = []
        cpp = [k for k in self.plan.kernels if isinstance(k, p.CppKernel)]
        names = {text: f"header_{i}" for i, text in enumerate(_headers(self.plan))}
        for text, name in names.items():
            lines += [f"{name} = rt.header({keep_header(text)!r}, __name__)", ""]
        if cpp:
            lines.append("cpp = rt.cpp_kernels(")
            lines.append("    {")
            lines += [f"        {k.symbol!r}: {_raw(k.source)}," for k in cpp]
            lines.append("    },")
            uses = [f"{k.symbol!r}: {names[k.preamble]}" for k in cpp if k.preamble]
            lines += [f"    {{{', '.join(uses)}}},", ")"]
        for kernel in self.plan.kernels:
            if isinstance(kernel, p.TritonKernel):
                lines += [
                    f"# Triton kernel {kernel.symbol}: {kernel.signature},",
                    f"# constants {kernel.constexprs}, {kernel.num_warps} warps",
                    kernel.source,
                    "",
                ]
        return lines

    def _body(self) -> list[str]:
        plan = self.plan
        lines = []
        for binding in plan.symbols:
            source = self._name(plan.inputs[binding.input].name)
            value = source if binding.dim is None else f"{source}.shape[{binding.dim}]"
            if binding.is_float:
                value = f"rt.float_bits({source})"
            lines.append(f"{binding.name} = {value}")
            self.taken.add(binding.name)
        self.bound = {binding.name for binding in plan.symbols}
        lines += self._definitions()
        for constant in plan.constants:
            lines.append(f"{self._name(constant.name)} = constants[{constant.name!r}]")
        for (device, number), at in p.slabs_of(plan).items():
            size = size_text(plan.slab_bytes[at][1])
            lines.append(f"{self._slab(device, number)} = rt.slab({size}, {device!r})")
        for step in plan.steps:
            lines += self._step(step)
        outputs = [
            "None" if o is None else self._name(o) if isinstance(o, str) else self._value(o)
            for o in plan.outputs
        ]
        lines.append(f"return ({', '.join(outputs)}{',' if len(outputs) == 1 else ''})")
        return lines

    def _slab(self, device: str, number: int) -> str:
        return self._name(f"slab {device} {number}" if number else f"slab {device}")

    def _definitions(self) -> list[str]:
        """What is defined by the symbols known by now, and was not before."""
        lines = []
        for name, size in self.plan.definitions:
            if name not in self.bound and symbols_of(size) <= self.bound:
                lines.append(f"{name} = {size_text(size)}")
                self.taken.add(name)
                self.bound.add(name)
        return lines

    def _step(self, step: p.Step) -> list[str]:
        match step:
            case p.Allocate():
                name = self._name(step.name)
                if step.slab_offset is None and step.spec.offset == 0:
                    spec = step.spec
                    own = "" if step.over is None else f"  # or the memory of {step.over}"
                    return [
                        f"{name} = torch.empty_strided({_tuple(spec.shape)}, {_tuple(spec.stride)},"
                        f" dtype={spec.dtype}, device={str(spec.device)!r}){own}"
                    ]
                memory, start = self._slab(str(step.spec.device), step.slab), step.slab_offset
                if start is None:
                    memory, start = f"rt.slab({self._bytes(step.spec)}, '{step.spec.device}')", 0
                return [f"{name} = rt.place({memory}, {size_text(start)}, {_spec(step.spec)})"]
            case p.View():
                base = self._name(step.base)
                return [f"{self._name(step.name)} = rt.view({base}, {_spec(step.spec)})"]
            case p.LaunchCpp():
                tensors = ", ".join(self._name(n) for n in step.tensors)
                work = size_text(step.work)
                call = f"cpp[{step.kernel!r}]([{tensors}], {_tuple(step.sizes)}, {work})"
                return [f"{call}{_comment(step.label)}"]
            case p.LaunchTriton():
                return [f"{self._triton(step)}{_comment(step.label)}"]
            case p.CallAten():
                return [self._aten(step)]
            case p.CopyInto():
                return [f"{self._name(step.target)}.copy_({self._name(step.source)})"]
            case p.Free():
                return [f"del {', '.join(self._name(n) for n in step.names)}"]
            case p.FreeSlab():
                return [f"del {self._slab(step.device, step.slab)}"]
            case p.Bind():
                self.taken.add(step.name)
                self.bound.add(step.name)
                tensor = self._name(step.tensor)
                value = (
                    f"rt.element({tensor})" if step.dim is None else f"{tensor}.shape[{step.dim}]"
                )
                return [f"{step.name} = {value}", *self._definitions()]
            case p.Choose():
                return self._choose(step)
            case p.While():
                return self._while(step)
            case p.Assert():
                said = repr(step.message)
                if step.numbers:
                    said += f".format({', '.join(size_text(n) for n in step.numbers)})"
                if step.error == "RuntimeError":
                    return [f"assert {size_text(step.condition)}, {said}"]
                raised = f"raise {step.error}({said})"
                return [f"if not {size_text(step.condition)}:", f"    {raised}"]
        raise TypeError(f"unknown step {step!r}")

    def _bytes(self, spec: p.TensorSpec) -> str:
        last = "".join(
            f" + ({size_text(n)} - 1) * {size_text(s)}"
            for n, s in zip(spec.shape, spec.stride, strict=True)
        )
        return f"max(0, {size_text(spec.offset)} + 1{last}) * {spec.dtype.itemsize}"

    def _triton(self, step: p.LaunchTriton) -> str:
        kernel = next(k for k in self.plan.kernels if k.symbol == step.kernel)
        assert isinstance(kernel, p.TritonKernel)
        left = [(name, kind) for name, kind in kernel.signature if kind != "constexpr"]
        keywords = [
            f"{name}={self._given(argument, kind)}"
            for (name, kind), argument in zip(left, step.args, strict=True)
        ]
        keywords += [f"{n}={v!r}" for n, v in kernel.constexprs]
        keywords += [f"num_warps={kernel.num_warps}", f"num_stages={kernel.num_stages}"]
        if not kernel.fp_fusion:
            keywords.append("enable_fp_fusion=False")
        return f"{kernel.symbol}[{_tuple(step.grid)}]({', '.join(keywords)})"

    def _given(self, argument: str | p.Size, kind: str) -> str:
        if not isinstance(argument, str):
            return size_text(argument)
        name = self._name(argument)
        return name if kind.startswith("*") else f"rt.element({name})"

    def _choose(self, step: p.Choose) -> list[str]:
        lines, functions = self._functions(step.branches)
        args = [self._name(a) if isinstance(a, str) else self._value(a) for a in step.args]
        targets = ["_" if o is None else self._name(o) for o in step.outputs]
        chosen = f"{functions[0]} if {self._name(step.predicate)}.item() else {functions[1]}"
        return [*lines, f"{', '.join(targets)}, = ({chosen})({', '.join(args)})"]

    def _while(self, step: p.While) -> list[str]:
        lines, (condition, body) = self._functions((step.condition, step.body))
        args = [self._name(a) if isinstance(a, str) else self._value(a) for a in step.args]
        count = len(step.outputs)
        carried = self._name(f"carried {len(self.names)}")
        targets = ["_" if o is None else self._name(o) for o in step.outputs]
        call = ", ".join((f"*{carried}", *args[count:]))
        results = f"{body}({call})"
        if {i.name for i in step.body.inputs} & set(step.body.outputs):
            results = f"[value.clone() for value in {results}]"
        return [
            *lines,
            f"{carried} = [{', '.join(f'{a}.clone()' for a in args[:count])}]",
            f"while {condition}({call})[0].item():",
            f"    {carried} = {results}",
            f"{', '.join(targets)}, = {carried}",
        ]

    def _functions(self, plans: Sequence[p.Plan]) -> tuple[list[str], list[str]]:
        """Lines that define a function for each of the plans within this one; their names."""
        lines: list[str] = []
        functions: list[str] = []
        for plan in plans:
            functions.append(self._name(f"branch {plan.name} {len(self.names)}"))
            inner = _Writer(replace(plan, kernels=self.plan.kernels), self.symbol_values)
            lines.append(f"def {functions[-1]}({', '.join(inner._parameters())}):")
            lines += ["    " + line for line in inner._body()]
        return lines, functions

    def _aten(self, step: p.CallAten) -> str:
        namespace, _, name = step.op.partition("::")
        path = f"torch.ops.{namespace}.{name}" + ("" if "." in name else ".default")
        values = [self._value(a) for a in step.args]
        named = {k: self._value(a) for k, a in step.kwargs}
        if _number_for_tensor(step):
            keywords = ", ".join(f"{k!r}: {v}" for k, v in named.items())
            call = f"rt.call_with_numbers({path}, [{', '.join(values)}], {{{keywords}}})"
        else:
            call = f"{path}({', '.join(values + [f'{k}={v}' for k, v in named.items()])})"
        if all(output is None for output in step.outputs):
            return call
        targets = ["_" if o is None else self._name(o) for o in step.outputs]
        if len(targets) == 1 and not _returns_several(step.op):
            return f"{targets[0]} = {call}"
        return f"{', '.join(targets)}, *_ = {call}"

    def _value(self, argument: p.AtenArg) -> str:
        if isinstance(argument, p.Ref):
            return self._name(argument.name)
        if isinstance(argument, p.SizeExpr):
            return size_text(argument)
        if isinstance(argument, p.FloatOf):
            return f"rt.float_from_bits({size_text(argument.bits)})"
        if isinstance(argument, tuple):
            return f"[{', '.join(self._value(a) for a in argument)}]"
        if isinstance(argument, torch.device):
            return repr(str(argument))
        if isinstance(argument, float):
            return (
                f"float({str(argument)!r})"
                if argument in _SPECIAL or argument != argument
                else repr(argument)
            )
        return str(argument) if isinstance(argument, _TORCH_CONSTANTS) else repr(argument)

    def _main(self) -> list[str]:
        lines = ['if __name__ == "__main__":']
        for binding in self.plan.symbols:
            default: int | float = 8.0 if binding.is_float else 8
            lines.append(f"    {binding.name} = {self.symbol_values.get(binding.name, default)}")
        arguments = []
        for index, declared in enumerate(self.plan.inputs):
            if declared.spec is None:
                bound = [b.name for b in self.plan.symbols if b.input == index and b.dim is None]
                arguments.append(bound[0] if bound else "8")
            else:
                spec = declared.spec
                offset = size_text(spec.offset)
                arguments.append(
                    f"rt.random_input({_tuple(spec.shape)}, {_tuple(spec.stride)}, {spec.dtype}, "
                    f"{str(spec.device)!r}, {offset})"
                )
        lines.append("    inputs = [")
        lines += [f"        {argument}," for argument in arguments]
        lines.append("    ]")
        lines += [f"    for output in {self._function()}(*inputs):", "        print(output)"]
        return lines


def _headers(plan: p.Plan) -> list[str]:
    """What C++ kernels of a plan share, each once."""
    cpp = (k for k in plan.kernels if isinstance(k, p.CppKernel) and k.preamble)
    return list(dict.fromkeys(kernel.preamble for kernel in cpp))


def _comment(label: str) -> str:
    return f"  # {label}" if label else ""


_TORCH_CONSTANTS = (torch.dtype, torch.layout, torch.memory_format)
_SPECIAL = (float("inf"), float("-inf"))


def _returns_several(op: str) -> bool:
    returns = resolve_op(op)._schema.returns  # type: ignore[attr-defined]
    return len(returns) > 1 or (len(returns) == 1 and "List" in str(returns[0].type))


def _number_for_tensor(step: p.CallAten) -> bool:
    formals = resolve_op(step.op)._schema.arguments  # type: ignore[attr-defined]
    given = {f.name: a for f, a in zip(formals, step.args, strict=False)} | dict(step.kwargs)
    tensors = {f.name for f in formals if str(f.type) in ("Tensor", "Optional[Tensor]")}
    return any(
        isinstance(given.get(n), (bool, int, float, complex, p.FloatOf, p.SizeExpr))
        for n in tensors
    )


def _tuple(sizes: Sequence[p.Size]) -> str:
    inner = ", ".join(size_text(s) for s in sizes)
    return f"({inner},)" if len(sizes) == 1 else f"({inner})"


def _spec(spec: p.TensorSpec) -> str:
    text = f"{_tuple(spec.shape)}, {_tuple(spec.stride)}, {spec.dtype}"
    return text if spec.offset == 0 else f"{text}, {size_text(spec.offset)}"


def _raw(text: str) -> str:
    if '"""' in text or text.endswith(("\\", '"')):
        return repr(text)
    return f'r"""{text}"""'
