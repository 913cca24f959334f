"""Plans as bytes, as files in the cache, and as programs."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import torch
from dovetail_runtime import (
    Allocate,
    CallAten,
    Constant,
    CopyInto,
    CppKernel,
    Free,
    FreeSlab,
    LaunchCpp,
    LaunchTriton,
    Plan,
    PlanInput,
    Ref,
    SizeExpr,
    SymbolBinding,
    TensorSpec,
    TritonKernel,
    View,
    as_python,
    load,
    load_plan,
    save_plan,
    write_program,
)
from dovetail_runtime.disk_cache import DiskCache
from dovetail_runtime.program_support import header
from dovetail_runtime.serialize import PlanFormatError, plan_from_bytes, plan_to_bytes

CPU = torch.device("cpu")
N = SizeExpr("sym", ("n",))
ROWS = TensorSpec((N, 4), (4, 1), torch.float32, CPU)
KERNEL = CppKernel(
    "twice",
    'extern "C" void twice(void* const* p, const int64_t*, int64_t b, int64_t e) {\n'
    "  for (int64_t i = b; i < e; ++i) ((float*)p[1])[i] = two * ((float*)p[0])[i];\n}",
    preamble="constexpr float two = 2;",
)


# fmt: off
def everything() -> Plan:
    """A plan with every kind of step and argument that a CPU runs."""
    return Plan(
        "every thing",
        "cpu",
        inputs=(PlanInput("x.1", ROWS), PlanInput("k", None)),
        symbols=(SymbolBinding("n", 0, 0), SymbolBinding("m", 1, None)),
        constants=(Constant("c", torch.tensor([1.0, 2.0, 3.0, 4.0])),),
        kernels=(KERNEL,),
        steps=(
            Allocate("t", ROWS, 64),
            LaunchCpp("twice", ("x.1", "t"), (), SizeExpr("mul", (N, 4)), 64),
            View("v", "t", TensorSpec((4, N), (1, 4), torch.float32, CPU)),
            CallAten(
                "aten::sum.dim_IntList", (Ref("v"), (1,)), (("dtype", torch.float64),), ("s",)
            ),
            CallAten("aten::_to_copy", (Ref("s"),), (("dtype", torch.float32),), ("s32",)),
            CallAten("aten::where.self", (True, Ref("s32"), float("inf")), (), ("w",)),
            CallAten("aten::max.dim", (Ref("v"), 1), (), ("best", None)),
            CallAten("aten::split.Tensor", (Ref("best"), 2), (), ("b0", "b1")),
            CallAten(
                "aten::clone", (Ref("b0"),), (("memory_format", torch.preserve_format),), ("d",)
            ),
            Allocate("o", TensorSpec((4,), (1,), torch.float32, CPU), None),
            Allocate("e", TensorSpec((4,), (1,), torch.float32, CPU), 0, 1),
            CallAten("aten::add.out", (Ref("s32"), Ref("c")), (("out", Ref("e")),)),
            CallAten("aten::neg.out", (Ref("e"),), (("out", Ref("o")),)),
            FreeSlab("cpu", 1),
            CallAten("aten::neg_", (Ref("o"),)),
            CopyInto("x.1", "t"),
            Free(("t", "v")),
        ),
        slab_bytes=(("cpu", SizeExpr("add", (64, SizeExpr("mul", (N, 16))))), ("cpu", 64)),
        outputs=("o", "d", None, SizeExpr("add", (N, SizeExpr("sym", ("m",))))),
    )
# fmt: on


def close(actual: torch.Tensor, expected: torch.Tensor, tolerance: float = 1e-6) -> None:
    """(torch.testing would import sympy.)"""
    assert (actual.dtype, actual.shape) == (expected.dtype, expected.shape)
    assert torch.allclose(actual, expected, rtol=tolerance, atol=tolerance)


def same_plan(a: Plan, b: Plan) -> bool:
    constants = all(
        c.name == d.name and torch.equal(c.value, d.value)
        for c, d in zip(a.constants, b.constants, strict=True)
    )
    fields = [f for f in Plan.__dataclass_fields__ if f != "constants"]
    return constants and all(getattr(a, f) == getattr(b, f) for f in fields)


def test_there_and_back(tmp_path: Path) -> None:
    plan = everything()
    save_plan(plan, tmp_path / "plan.bin")
    read = load_plan(tmp_path / "plan.bin")
    assert same_plan(plan, read)
    x = torch.randn(3, 4)
    for made in (plan, read):
        o, d, none, size = load(made)(x.clone(), 5)
        close(o, (2 * x).sum(0) + torch.tensor([1.0, 2.0, 3.0, 4.0]))
        close(d, (2 * x).max(0).values[:2])
        assert none is None and size == 8


def test_triton_kernels_travel() -> None:
    kernel = TritonKernel(
        "k", "source", (("x", "*fp32"), ("B", "constexpr")), (("B", 8),), 4, 2, ("x",)
    )
    x = TensorSpec((8,), (1,), torch.bfloat16, torch.device("cuda:0"))
    plan = Plan(
        "gpu", "cuda", (PlanInput("x", x),), (), (), (kernel,),
        (LaunchTriton("k", ("x",), (1, 1, 1)),), (("cuda:0", 64),), ("x",),
    )  # fmt: skip
    assert plan_from_bytes(plan_to_bytes(plan)) == plan
    assert "@" not in as_python(plan).partition('"""')[0]


def test_other_bytes_are_refused() -> None:
    with pytest.raises(PlanFormatError, match="not a Dovetail plan"):
        plan_from_bytes(b"something else")
    data = plan_to_bytes(everything())
    with pytest.raises(PlanFormatError, match="format 999 cannot be read"):
        plan_from_bytes(data.replace(b"format 3 ", b"format 999 ", 1))


def test_the_cache_keeps_plans(tmp_path: Path) -> None:
    cache = DiskCache(tmp_path, "plan", 1 << 20)
    key = [("graph", "abc"), ("options", "none")]
    assert cache.get(key) is None
    cache.put_files(key, {"plan.bin": plan_to_bytes(everything())})
    found = cache.get(key)
    data = None if found is None else found.read("plan.bin")
    assert data is not None and same_plan(plan_from_bytes(data), everything())
    other = [("graph", "abd"), ("options", "none")]
    assert cache.get(other) is None
    explained = cache.explain_miss(other)
    assert explained == "the nearest entry differs in graph: 'abc' there, 'abd' here"


def test_a_plan_as_a_program_runs_and_agrees(tmp_path: Path) -> None:
    program = write_program(everything(), tmp_path, symbol_values={"n": 3, "m": 5})
    text = program.read_text()
    assert "torch.ops.aten.sum.dim_IntList(v, [1], dtype=torch.float64)" in text
    assert "t = rt.place(slab_cpu, 64, (n, 4), (4, 1), torch.float32)" in text
    assert "e = rt.place(slab_cpu_1, 0, (4,), (1,), torch.float32)" in text
    assert "del slab_cpu_1" in text
    done = subprocess.run(
        [sys.executable, str(program)], capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip().endswith("None\n8")
    namespace: dict[str, object] = {"__name__": "program", "__file__": str(program)}
    exec(compile(text, str(program), "exec"), namespace)
    x = torch.randn(3, 4)
    by_text = namespace["run_every_thing"](x.clone(), 5)  # type: ignore[operator]
    by_plan = load(everything())(x.clone(), 5)
    for a, b in zip(by_text, by_plan, strict=True):
        close(a, b) if isinstance(a, torch.Tensor) else None
        assert isinstance(a, torch.Tensor) or a == b


def test_a_program_refers_to_headers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program = write_program(everything(), tmp_path / "there")
    text = program.read_text()
    assert KERNEL.preamble not in text and "rt.header('kernels_" in text
    (beside,) = program.parent.glob("*.h")
    assert beside.read_text() == KERNEL.preamble
    exec(
        compile(as_python(everything()), "text", "exec"),
        {"__name__": "text", "Path": Path} | {"__file__": str(program)},
    )  # fmt: skip (found in the cache)
    monkeypatch.setenv("DOVETAIL_CACHE_DIR", str(tmp_path / "empty"))
    done = subprocess.run([sys.executable, str(program)], capture_output=True, timeout=120)
    assert done.returncode == 0, done.stderr  # (found beside the program)
    beside.unlink()
    with pytest.raises(FileNotFoundError, match="write_program"):
        header(beside.name, "nothing")
