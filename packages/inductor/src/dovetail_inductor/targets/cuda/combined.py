"""Several independent kernels in one launch: the range of a program's number says which.

Kernels of equal text are one function, called once: which tensors it works on is chosen before.
"""

from __future__ import annotations

from collections.abc import Mapping

from dovetail_inductor.kernel_names import MOST_LETTERS, operators_of
from dovetail_inductor.loop_ir.loops import Buffer
from dovetail_inductor.loop_ir.sizes import names_in
from dovetail_inductor.scheduler.kernels import CombinedKernel, FusedKernel, ProductKernel
from dovetail_inductor.targets.cuda.assemble import (
    EmittedKernel,
    KernelBody,
    assemble,
    parameter_types,
)
from dovetail_inductor.targets.cuda.kernel import Emission
from dovetail_inductor.targets.cuda.product import emit_products
from dovetail_inductor.targets.cuda.tiling import choose


def emit_combined(
    combined: CombinedKernel, buffers: Mapping[str, Buffer], dependent: bool = False
) -> EmittedKernel:
    """Triton source of a shared launch.

    Raises `UnsupportedOp` for a scalar op that has no Triton form.
    """
    products = [k for k in combined.kernels if isinstance(k, ProductKernel)]
    if products:
        return emit_products(products, buffers, dependent)
    classes: dict[tuple[object, ...], list[KernelBody]] = {}
    fused = [kernel for kernel in combined.kernels if isinstance(kernel, FusedKernel)]
    assert len(fused) == len(combined.kernels), "products share launches with products"
    for kernel in fused:
        body = Emission(kernel, buffers, choose(kernel, buffers, shared=True)).run()
        types = parameter_types(body.parameters, buffers)
        classes.setdefault((body.text, types), []).append(body)
    parameters: list[tuple[str, str]] = []
    functions = ""
    lines = ["    pid = tl.program_id(0)"]
    start = 0
    # in the order of their text, so that equal launches read equal
    for number, (_, bodies) in enumerate(sorted(classes.items(), key=lambda item: item[0])):
        bodies.sort(key=lambda body: body.tiling.programs)
        sizes = [f"size_{symbol}" for symbol in names_in(bodies[0].text)]
        formal = ["pid", *(name for name, _ in bodies[0].parameters), *sizes]
        functions += f"@triton.jit\ndef part{number}({', '.join(formal)}):\n{bodies[0].text}\n\n\n"
        members: list[tuple[int, list[str]]] = []
        for body in bodies:
            mine = [f"p{len(parameters) + k}" for k in range(len(body.parameters))]
            parameters += zip(mine, (b for _, b in body.parameters), strict=True)
            members.append((body.tiling.programs, mine))
        lines += _branch(number, members, sizes, start, number == len(classes) - 1)
        start += sum(programs for programs, _ in members)
    tiling = next(iter(classes.values()))[0].tiling
    names = sorted({operators_of(kernel.nests) for kernel in fused})
    name = f"combined_{'_'.join(names)[:MOST_LETTERS].rstrip('_')}"
    scatters = any(body.scatters for bodies in classes.values() for body in bodies)
    text, own = "\n".join(lines), tuple(parameters)
    body = KernelBody(text, own, tiling, "combined", scatters)
    return assemble(name, body, start, buffers, functions, dependent=dependent)


def _branch(
    number: int, members: list[tuple[int, list[str]]], sizes: list[str], start: int, last: bool
) -> list[str]:
    """The branch of the programs of one function: choose its tensors, call it.

    `members` are the numbers of programs and the pointers; `sizes` are what else it takes; `start`
    is the first program.
    """
    end = start + sum(programs for programs, _ in members)
    if start == 0 and last:
        lines, indent = [], "    "
    else:
        test = f"{'if' if start == 0 else 'elif'} pid < {end}:"
        lines, indent = ["    " + ("else:" if last else test)], "        "
    if len(members) == 1:
        own = f"pid - {start}" if start else "pid"
        return [*lines, f"{indent}part{number}({', '.join([own, *members[0][1], *sizes])})"]
    chosen = [f"c{number}_{k}" for k in range(1 + len(members[0][1]))]
    for m, (programs, names) in enumerate(members):
        first, start = start, start + programs
        test = f"{'if' if m == 0 else 'elif'} pid < {start}:"
        lines.append(indent + ("else:" if m == len(members) - 1 else test))
        values = [f"pid - {first}" if first else "pid", *names]
        lines += [f"{indent}    {c} = {v}" for c, v in zip(chosen, values, strict=True)]
    lines.append(f"{indent}part{number}({', '.join([*chosen, *sizes])})")
    return lines
