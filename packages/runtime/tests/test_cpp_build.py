"""The C++ build: translation units, errors, the disk cache, two processes at once."""

from __future__ import annotations

import gc
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Barrier

import pytest
import torch
from cpp_kernels import HEAD, call, constant, knobs
from dovetail_runtime import artifact, disk_cache, load
from dovetail_runtime.cpp_build import CppBuilder, group_kernels, translation_unit
from dovetail_runtime.cpp_compiler import Compiler, CompilerNotFound, CppCompileError
from dovetail_runtime.disk_cache import DiskCache, key_digest
from dovetail_runtime.knobs import Knobs
from dovetail_runtime.native import NativeMismatch, check_module, executor_module
from dovetail_runtime.plan import Allocate, CppKernel, LaunchCpp, Plan, PlanInput, TensorSpec


def test_kernels_share_a_preamble_and_helper_names(tmp_path: Path) -> None:
    preamble = "#include <vector>\nstruct Shared { std::vector<int> v; };"
    kernels = [constant("a", 1, preamble), constant("b", 2, preamble), constant("c", 3)]
    unit = translation_unit(kernels)
    assert unit.count("struct Shared") == 1 and unit.count("#include <vector>") == 1
    assert unit.index("#include <vector>") < unit.index("struct Shared") < unit.index("void a(")
    builder = CppBuilder(knobs(tmp_path))
    functions = builder.build(kernels)
    assert [call(functions[s]) for s in "abc"] == [1, 2, 3]


def mapped(directory: Path) -> int:
    """How many shared objects of a directory are open."""
    lines = Path("/proc/self/maps").read_text().splitlines()
    return len({line.split()[-1] for line in lines if str(directory) in line})


def test_a_library_is_closed_after_its_last_user(tmp_path: Path) -> None:
    builder = CppBuilder(knobs(tmp_path, DOVETAIL_COMPILE_WORKERS="1"))
    first, second = constant("a", 1), constant("b", 2)
    functions = builder.build([first, second])  # one worker: one shared object
    assert mapped(tmp_path) == 1
    again = builder.build([first])
    assert again["a"] is functions["a"]
    functions.clear()
    gc.collect()
    assert mapped(tmp_path) == 1 and call(again["a"]) == 1
    again.clear()
    gc.collect()
    assert mapped(tmp_path) == 0
    reopened = builder.build([second])
    assert mapped(tmp_path) == 1 and call(reopened["b"]) == 2


def test_a_loaded_plan_keeps_its_kernels(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its native program alone does, also in a call that another thread is in."""
    builder = CppBuilder(knobs(tmp_path))
    monkeypatch.setattr(artifact, "default_cpp_builder", lambda: builder)
    wait = "#include <unistd.h>\n" + HEAD.format("later")
    body = """{
      volatile float* x = static_cast<float*>(p[0]);
      while (x[0] == 0) usleep(1000);
      static_cast<float*>(p[1])[0] = x[0] + 1;
    }"""
    spec = TensorSpec((1,), (1,), torch.float32, torch.device("cpu"))
    x = torch.zeros(1)
    plan = Plan(
        name="later",
        target="cpu",
        inputs=(PlanInput("x", spec),),
        symbols=(),
        constants=(),
        kernels=(CppKernel("later", wait + body),),
        steps=(Allocate("y", spec, None), LaunchCpp("later", ("x", "y"), (), 1, 1)),
        slab_bytes=(),
        outputs=("y",),
    )
    runs = [load(plan).run]
    gc.collect()
    assert mapped(tmp_path) == 1
    with ThreadPoolExecutor(1) as pool:
        result = pool.submit(lambda: runs.pop()(x))
        while runs:
            pass
        gc.collect()
        still_mapped = mapped(tmp_path)  # it runs until x is not 0
        x.fill_(1)
        assert still_mapped == 1
        assert result.result()[0].item() == 2
        del result
    gc.collect()
    assert mapped(tmp_path) == 0


def test_groups_are_balanced_and_complete() -> None:
    kernels = [constant(f"k{i}", i) for i in range(7)]
    groups = group_kernels(kernels, 3)
    assert sorted(k.symbol for g in groups for k in g) == [f"k{i}" for i in range(7)]
    assert sorted(len(g) for g in groups) == [2, 2, 3]
    assert group_kernels(kernels[:1], 8) == [[kernels[0]]]


def test_what_is_cached_is_not_compiled_again(tmp_path: Path) -> None:
    first, second = constant("a", 1), constant("b", 2)
    CppBuilder(knobs(tmp_path)).build([first])
    # A path to a compiler that cannot run shows whether one is asked for.
    no_compiler = knobs(tmp_path, DOVETAIL_COMPILE_WORKERS="1")
    builder = CppBuilder(no_compiler)
    builder._compile = None  # type: ignore[assignment, method-assign]
    assert call(builder.build([first])["a"]) == 1
    other = CppBuilder(knobs(tmp_path))
    assert "symbol: 'a' there, 'b' here" in other.explain_miss(second)
    assert other.explain_miss(first) == "no miss: the entry is there"
    assert call(other.build([first, second])["b"]) == 2


@pytest.mark.parametrize("gone", ["kernels.so", "key.json"], ids=["the library", "the key alone"])
def test_what_an_eviction_left_is_compiled_again(gone: str, tmp_path: Path) -> None:
    """One that was cut short has removed the key, and leaves the rest."""
    kernel = constant("a", 1)
    CppBuilder(knobs(tmp_path)).build([kernel])
    found = list(tmp_path.rglob(gone))
    assert found
    for path in found:
        path.unlink()
    assert call(CppBuilder(knobs(tmp_path)).build([kernel])["a"]) == 1


def test_a_source_that_does_not_compile(tmp_path: Path) -> None:
    broken = CppKernel("a", "int x = 1;\n" + HEAD.format("a") + "{ undeclared_name = 1; }")
    with pytest.raises(CppCompileError, match=r"undeclared_name.*was not declared") as caught:
        CppBuilder(knobs(tmp_path)).build([broken])
    assert "> " in str(caught.value)  # the line, marked
    assert not list(tmp_path.rglob(".new-*"))
    silent = CppKernel("a", "static int nothing;")
    with pytest.raises(CppCompileError, match="defines no extern"):
        CppBuilder(knobs(tmp_path)).build([silent])


def test_a_missing_compiler_says_what_to_do(tmp_path: Path) -> None:
    with pytest.raises(CompilerNotFound, match=r"apt install g\+\+.*DOVETAIL_CXX"):
        CppBuilder(knobs(tmp_path, DOVETAIL_CXX="no-such-compiler")).build([constant("a", 1)])


def test_two_kernels_of_one_name_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="two different kernels are called 'a'"):
        CppBuilder(knobs(tmp_path)).build([constant("a", 1), constant("a", 2)])


def test_a_build_under_way_is_joined(tmp_path: Path) -> None:
    builder = CppBuilder(knobs(tmp_path))
    kernels = [constant("a", 1), constant("b", 2)]
    started = builder.start(kernels)
    assert set(builder.build([kernels[0]])) == {"a"}
    assert set(builder.results(started)) == {"a", "b"}
    units = [d for d in (tmp_path / "cpp").iterdir() if (d / "kernels.so").exists()]
    assert len(units) <= 2  # one per worker, none twice


def test_the_key_holds_compiler_flags_and_machine() -> None:
    labels = [label for label, _ in Compiler.find("g++").key()]
    assert labels == ["abi", "flags", "compiler", "program", "cpu"]
    assert key_digest([("a", "bc")]) != key_digest([("ab", "c")])


RACE = """
import sys
from pathlib import Path
from dovetail_runtime.cpp_build import CppBuilder
from dovetail_runtime.knobs import Knobs
sys.path.insert(0, sys.argv[2])
from cpp_kernels import call, constant
builder = CppBuilder(Knobs.from_environment({"DOVETAIL_CACHE_DIR": sys.argv[1]}))
functions = builder.build([constant(f"k{i}", i) for i in range(6)])
print([call(functions[f"k{i}"]) for i in range(6)])
"""


def test_two_processes_at_once(tmp_path: Path) -> None:
    command = [sys.executable, "-c", RACE, str(tmp_path), str(Path(__file__).parent)]
    processes = [
        subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        for _ in range(2)
    ]
    for process in processes:
        out, err = process.communicate(timeout=120)
        assert out.strip() == "[0, 1, 2, 3, 4, 5]", err
    assert not list(tmp_path.rglob(".new-*"))


def test_eviction_drops_the_oldest(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import os
    import time

    monkeypatch.setattr(disk_cache, "_LOOK_EVERY", 1 << 40)
    cache = DiskCache(tmp_path, "things", limit_bytes=2500)
    for number in range(4):
        entry = cache.put([("n", str(number))], lambda d: (d / "x").write_bytes(b"0" * 1000))
        age = time.time() - 1000 + number
        os.utime(entry.path / "key.json", (age, age))
    assert cache.evict() == 2
    assert [cache.get([("n", str(n))]) is not None for n in range(4)] == [False, False, True, True]
    cache.put([("n", "9")], lambda d: (d / "x").write_bytes(b"0" * 5000))
    assert cache.evict() == 0  # those used a moment ago stay


def test_a_full_cache_is_swept_seldom(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Sweeps grow rarer as entries grow more; the limit holds all the same."""
    import os
    import time

    monkeypatch.setattr(disk_cache, "_LOOK_EVERY", 1)
    sweeps = []
    evict = DiskCache.evict

    def counted(cache: DiskCache, kept: float = 1.0) -> int:
        sweeps.append(kept)
        return evict(cache, kept)

    monkeypatch.setattr(DiskCache, "evict", counted)
    cache = DiskCache(tmp_path, "things", limit_bytes=100_000)

    def fill(numbers: range) -> int:
        before = len(sweeps)
        for number in numbers:
            entry = cache.put([("n", str(number))], lambda d: (d / "x").write_bytes(b"0" * 1000))
            age = time.time() - 10_000 + number
            os.utime(entry.path / "key.json", (age, age))
        files = [*tmp_path.rglob("x"), *tmp_path.rglob("key.json")]
        assert sum(f.stat().st_size for f in files) <= cache.limit_bytes * 1.1
        return len(sweeps) - before

    assert 2 <= fill(range(64)) <= 8
    assert 4 <= fill(range(64, 264)) <= 40
    assert cache.get([("n", "0")]) is None and cache.get([("n", "263")]) is not None


def test_threads_look_side_by_side(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each notes what it found; none stumbles over another's note."""
    monkeypatch.setattr(disk_cache, "_LOOK_EVERY", 1)
    cache = DiskCache(tmp_path, "things", limit_bytes=100_000)
    barrier = Barrier(8)

    def store(thread: int) -> None:
        barrier.wait()
        for number in range(30):
            cache.put([("n", f"{thread} {number}")], lambda d: (d / "x").write_bytes(b"0"))

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(store, range(8)))
    assert len([*tmp_path.rglob("x")]) == 240
    assert not [p for p in tmp_path.rglob(".swept-*")]


def test_an_executor_of_another_torch_is_refused() -> None:
    class Fake:
        torch_version = "1.0.0"

    with pytest.raises(NativeMismatch, match=r"built against torch 1\.0\.0.*setup\.py build_ext"):
        check_module(Fake)  # type: ignore[arg-type]
    Fake.torch_version = torch.__version__
    with pytest.raises(NativeMismatch, match=r"from other sources.*setup\.py build_ext"):
        check_module(Fake)  # type: ignore[arg-type]
    assert executor_module().torch_version == torch.__version__


def test_knobs() -> None:
    made = Knobs.from_environment(
        {
            "DOVETAIL_CACHE_DIR": "/somewhere",
            "DOVETAIL_CACHE_LIMIT_MB": "3",
            "DOVETAIL_CXX": "ccache clang++",
            "DOVETAIL_COMPILE_SECONDS": "7",
            "DOVETAIL_COMPILE_WORKERS": "5",
            "DOVETAIL_SLAB_CACHE_MB": "0",
            "DOVETAIL_DIRECT_PRODUCTS": "0",
        }
    )
    assert made == Knobs(Path("/somewhere"), 3 << 20, "ccache clang++", 7, 5, 0, False)
    assert Knobs.from_environment({"DOVETAIL_COMPILE_SECONDS": "0"}).compile_seconds is None
    with pytest.raises(ValueError, match="DOVETAIL_SLAB_CACHE_MB must be a whole number"):
        Knobs.from_environment({"DOVETAIL_SLAB_CACHE_MB": "much"})
    with pytest.raises(ValueError, match="must not be negative"):
        Knobs.from_environment({"DOVETAIL_COMPILE_WORKERS": "-1"})
