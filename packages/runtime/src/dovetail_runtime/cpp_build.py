"""C++ kernels to functions: compiled in parallel by the machine's compiler, kept on disk.

Kernels are grouped into a few translation units (a process each, one shared object each). Every
kernel also gets a small cache entry that says in which shared object it is, so that a kernel that
another plan brought is not compiled again.
"""

from __future__ import annotations

import hashlib
import json
import re
import shutil
import subprocess
import threading
from collections.abc import Iterable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from functools import lru_cache, partial
from pathlib import Path
from weakref import WeakValueDictionary

from dovetail_runtime.cpp_library import CppFunction, CppLibrary
from dovetail_runtime.disk_cache import DiskCache, KeyParts, key_digest
from dovetail_runtime.knobs import Knobs
from dovetail_runtime.plan import CppKernel

# Changes whenever the calling convention of plan.CppKernel does.
ABI = "cpp-1"

# -fno-math-errno and -fno-trapping-math let loops over sqrt and comparisons vectorise; neither
# changes a result. Contraction (a*b+c in one rounding) only happens where the source asks for it.
# Integers wrap around, as eager's do: else the compiler takes the square of one for positive.
FLAGS = (
    "-std=c++17", "-O3", "-march=native", "-fno-math-errno", "-fno-trapping-math",
    "-ffp-contract=off", "-fwrapv", "-fno-plt", "-fPIC", "-shared", "-g0", "-w",
    "-fvisibility=hidden",
)  # fmt: skip

_LIBRARY = "kernels.so"
_POINTER = "where.json"
_INCLUDE = re.compile(r"^[ \t]*#[ \t]*include\b.*$", re.MULTILINE)


class CompilerNotFound(RuntimeError):
    """There is no C++ compiler to run."""


class CppCompileError(RuntimeError):
    """The compiler refused a kernel; the message holds what it said."""


@dataclass(frozen=True)
class Compiler:
    """A C++ compiler: its path, and what of it enters a cache key."""

    path: str
    version: str
    cpu_flags: str

    @staticmethod
    def find(command: str) -> Compiler:
        """The compiler called `command`; `CompilerNotFound` says what to do if there is none."""
        path = shutil.which(command)
        if path is None:
            raise CompilerNotFound(
                f"no C++ compiler {command!r} was found: CPU kernels need one. Install g++ 11 or "
                "newer (Debian, Ubuntu: apt install g++; Fedora: dnf install gcc-c++), or name "
                "another one in the environment variable DOVETAIL_CXX."
            )
        return _describe_compiler(path)

    def key(self) -> KeyParts:
        """What of the compiler and the machine decides what a source becomes."""
        return [
            ("abi", ABI),
            ("flags", " ".join(FLAGS)),
            ("compiler", self.version),
            ("cpu", self.cpu_flags),
        ]


@lru_cache(maxsize=8)
def _describe_compiler(path: str) -> Compiler:
    run = subprocess.run([path, "--version"], capture_output=True, text=True, check=False)
    version = run.stdout.strip().partition("\n")[0]
    if run.returncode != 0 or not version:
        raise CompilerNotFound(f"{path} --version failed: {run.stderr.strip()}")
    return Compiler(path, version, _cpu_flags())


def _cpu_flags() -> str:
    """What `-march=native` looks at, as a digest and the model's name."""
    model, flags = "", ""
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        name, _, value = line.partition(":")
        if name.strip() == "model name":
            model = value.strip()
        elif name.strip() == "flags":
            flags = value.strip()
            break
    return f"{model} {hashlib.sha256(flags.encode()).hexdigest()[:16]}"


def translation_unit(kernels: Sequence[CppKernel]) -> str:
    """One C++ source for several kernels: includes, then each preamble once, then each kernel in
    a namespace of its own."""
    includes: dict[str, None] = {}
    bodies: list[str] = []

    def without_includes(text: str) -> str:
        for line in _INCLUDE.findall(text):
            includes[line.strip()] = None
        return _INCLUDE.sub("", text)

    for preamble in dict.fromkeys(k.preamble for k in kernels if k.preamble):
        bodies.append(without_includes(preamble))
    bodies.append("#pragma GCC visibility push(default)")
    for number, kernel in enumerate(kernels):
        source = without_includes(kernel.source)
        bodies.append(f"namespace dovetail_kernel_{number} {{\n{source}\n}}")
    bodies.append("#pragma GCC visibility pop\n")
    return "\n".join(["#include <cstdint>", *includes, *bodies])


def group_kernels(kernels: Sequence[CppKernel], workers: int) -> list[list[CppKernel]]:
    """Kernels shared out so that `workers` processes finish at about the same time."""
    groups: list[list[CppKernel]] = [[] for _ in range(max(1, min(workers, len(kernels))))]
    loads = [0] * len(groups)
    for kernel in sorted(kernels, key=lambda k: len(k.source), reverse=True):
        lightest = loads.index(min(loads))
        groups[lightest].append(kernel)
        loads[lightest] += len(kernel.source)
    return [group for group in groups if group]


class CppBuild:
    """Kernels on their way: `result()` waits and gives each symbol's function."""

    def __init__(
        self,
        symbols: set[str],
        found: dict[str, CppFunction],
        pending: Sequence[Future[dict[str, CppFunction]]],
    ) -> None:
        self._symbols = symbols
        self._found = found
        self._pending = pending

    def result(self) -> dict[str, CppFunction]:
        """Functions by symbol; raises `CppCompileError` if a kernel did not compile."""
        functions = dict(self._found)
        for future in self._pending:
            compiled = future.result()
            functions.update({s: f for s, f in compiled.items() if s in self._symbols})
        return functions


class CppBuilder:
    """Compiles kernels with one compiler into one cache. Thread-safe."""

    def __init__(self, knobs: Knobs) -> None:
        self._knobs = knobs
        self._cache = DiskCache(knobs.cache_dir, "cpp", knobs.cache_limit_bytes)
        self._pool = ThreadPoolExecutor(max(1, knobs.compile_workers), "dovetail-cpp")
        self._lock = threading.Lock()
        # Weak: a library is closed when the last plan that calls into it is dropped.
        self._loaded: WeakValueDictionary[Path, CppLibrary] = WeakValueDictionary()
        self._known: WeakValueDictionary[CppKernel, CppFunction] = WeakValueDictionary()
        self._underway: dict[CppKernel, Future[dict[str, CppFunction]]] = {}

    def start(self, kernels: Iterable[CppKernel]) -> CppBuild:
        """Begin compiling what is in no cache; returns at once."""
        wanted = list(dict.fromkeys(kernels))
        symbols = [k.symbol for k in wanted]
        if len(set(symbols)) != len(symbols):
            twice = next(s for s in symbols if symbols.count(s) > 1)
            raise ValueError(f"two different kernels are called {twice!r}")
        found: dict[str, CppFunction] = {}
        pending: list[Future[dict[str, CppFunction]]] = []
        missing: list[CppKernel] = []
        for kernel in wanted:
            function = self._lookup(kernel)
            if function is not None:
                found[kernel.symbol] = function
                continue
            with self._lock:
                underway = self._underway.get(kernel)
            if underway is not None:
                pending.append(underway)
            else:
                missing.append(kernel)
        if missing:
            compiler = Compiler.find(self._knobs.cxx)
            for group in group_kernels(missing, self._knobs.compile_workers):
                future = self._pool.submit(self._compile, group, compiler)
                with self._lock:
                    self._underway.update(dict.fromkeys(group, future))
                future.add_done_callback(partial(self._landed, group))
                pending.append(future)
        return CppBuild({k.symbol for k in wanted}, found, pending)

    def _landed(self, group: Sequence[CppKernel], _: Future[dict[str, CppFunction]]) -> None:
        with self._lock:
            for kernel in group:
                self._underway.pop(kernel, None)

    def build(self, kernels: Iterable[CppKernel]) -> dict[str, CppFunction]:
        """Each kernel's function, by symbol."""
        return self.start(kernels).result()

    def explain_miss(self, kernel: CppKernel) -> str:
        """Why `kernel` had to be compiled."""
        return self._cache.explain_miss(self._kernel_key(kernel))

    def _kernel_key(self, kernel: CppKernel) -> KeyParts:
        return [
            *Compiler.find(self._knobs.cxx).key(),
            ("preamble", kernel.preamble),
            ("source", kernel.source),
            ("symbol", kernel.symbol),
        ]

    def _lookup(self, kernel: CppKernel) -> CppFunction | None:
        with self._lock:
            known = self._known.get(kernel)
        if known is not None:
            return known
        entry = self._cache.get(self._kernel_key(kernel))
        if entry is None:
            return None
        try:
            library = self._cache.directory / json.loads((entry / _POINTER).read_text()) / _LIBRARY
            return self._function(kernel, library)
        except (OSError, ValueError):
            return None  # the shared object was evicted: compile again

    def _function(self, kernel: CppKernel, path: Path) -> CppFunction:
        with self._lock:
            library = self._loaded.get(path)
            if library is None:
                library = self._loaded[path] = CppLibrary(path)
            function = library.function(kernel.symbol)
            if function is None:
                raise CppCompileError(
                    f'the source of kernel {kernel.symbol!r} defines no extern "C" function '
                    "of that name"
                )
            self._known[kernel] = function
            return function

    def _compile(self, group: Sequence[CppKernel], compiler: Compiler) -> dict[str, CppFunction]:
        source = translation_unit(group)
        key = [*compiler.key(), ("unit", source)]

        def fill(directory: Path) -> None:
            (directory / "kernels.cpp").write_text(source)
            run_compiler(compiler, directory / "kernels.cpp", directory / _LIBRARY)

        entry = self._cache.get(key)
        if entry is not None and not (entry / _LIBRARY).exists():
            self._cache.drop(key)
            entry = None
        if entry is None:
            entry = self._cache.put(key, fill)
        functions = {k.symbol: self._function(k, entry / _LIBRARY) for k in group}
        where = json.dumps(key_digest(key))
        for kernel in group:
            self._cache.put(self._kernel_key(kernel), lambda d: _write(d / _POINTER, where))
        return functions


def _write(path: Path, text: str) -> None:
    path.write_text(text)


def run_compiler(compiler: Compiler, source: Path, output: Path) -> None:
    """Compile one translation unit into a shared object."""
    command = [compiler.path, *FLAGS, str(source), "-o", str(output)]
    run = subprocess.run(command, capture_output=True, text=True, check=False)
    if run.returncode != 0:
        numbered = _around_first_error(source.read_text(), run.stderr, source.name)
        raise CppCompileError(
            f"{compiler.path} failed with status {run.returncode}\n{run.stderr[:4000]}\n{numbered}"
        )


def _around_first_error(source: str, message: str, name: str) -> str:
    match = re.search(re.escape(name) + r":(\d+):", message)
    if match is None:
        return ""
    wrong = int(match.group(1))
    lines = source.splitlines()
    first = max(1, wrong - 4)
    return "\n".join(
        f"{'>' if n == wrong else ' '}{n:5d} {lines[n - 1]}"
        for n in range(first, min(len(lines), wrong + 4) + 1)
    )
