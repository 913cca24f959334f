"""C++ kernels to functions: compiled in parallel by the machine's compiler, kept on disk.

Kernels are grouped into a few translation units (a process each, one shared object each). Every
kernel also gets a small cache entry that says in which shared object it is, so that a kernel that
another plan brought is not compiled again.
"""

from __future__ import annotations

import ctypes
import json
import re
import shlex
import threading
import weakref
from _ctypes import dlclose
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from dovetail_runtime.compile_pool import finished
from dovetail_runtime.cpp_compiler import (
    Compiler,
    CompilerProcesses,
    CppCompileError,
    check_shared_object,
    run_compiler,
)
from dovetail_runtime.disk_cache import DiskCache, Entry, KeyParts
from dovetail_runtime.knobs import Knobs
from dovetail_runtime.plan import CppKernel

_LIBRARY = "kernels.so"
_POINTER = "where.json"
_INCLUDE = re.compile(r"^[ \t]*#[ \t]*include\b.*$", re.MULTILINE)


class CppLibrary:
    """An open shared object, closed when this is dropped. (A process has room for some ten
    thousand of them, and one that compiles on and on would run out.)"""

    def __init__(self, path: Path) -> None:
        self._library = ctypes.CDLL(str(path))
        closing = weakref.finalize(self, dlclose, self._library._handle)
        closing.atexit = False  # threads that the process does not wait for may be in a kernel

    def function(self, symbol: str) -> CppFunction | None:
        """The function called `symbol`, if there is one."""
        function = getattr(self._library, symbol, None)
        if function is None:
            return None
        address = ctypes.cast(function, ctypes.c_void_p).value
        assert address is not None
        return CppFunction(address, self)


@dataclass(frozen=True, eq=False)
class CppFunction:
    """A compiled kernel. Who may call what is at `address` holds this, which keeps it there: a
    bare address outlives nothing."""

    address: int
    library: CppLibrary


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


class CppBuilder:
    """Compiles kernels with one compiler into one cache. Thread-safe."""

    def __init__(self, knobs: Knobs) -> None:
        self._knobs = knobs
        self._cache = DiskCache(knobs.cache_dir, "cpp", knobs.cache_limit_bytes, executable=True)
        self._processes = CompilerProcesses()
        self._pool = ThreadPoolExecutor(max(1, knobs.compile_workers), "dovetail-cpp")
        self._lock = threading.Lock()
        # Weak: a library is closed when the last plan that calls into it is dropped.
        self._loaded: weakref.WeakValueDictionary[str, CppLibrary] = weakref.WeakValueDictionary()
        self._known: weakref.WeakValueDictionary[CppKernel, CppFunction] = (
            weakref.WeakValueDictionary()
        )
        self._underway: dict[CppKernel, Future[CppFunction]] = {}

    def start(self, kernels: Iterable[CppKernel]) -> dict[str, Future[CppFunction]]:
        """Begin compiling what is in no cache; returns at once. `results` waits for each symbol's
        function."""
        wanted = list(dict.fromkeys(kernels))
        symbols = [k.symbol for k in wanted]
        if len(set(symbols)) != len(symbols):
            twice = next(s for s in symbols if symbols.count(s) > 1)
            raise ValueError(f"two different kernels are called {twice!r}")
        coming: dict[str, Future[CppFunction]] = {}
        missing: list[CppKernel] = []
        for kernel in wanted:
            with self._lock:
                underway = self._underway.get(kernel)
            if underway is not None:
                coming[kernel.symbol] = underway
                continue
            function = self._known.get(kernel) or self._lookup(kernel)
            if function is not None:
                coming[kernel.symbol] = finished(function)
            else:
                missing.append(kernel)
        if missing:
            compiler = Compiler.find(self._knobs.cxx)
            for group in group_kernels(missing, self._knobs.compile_workers):
                made: dict[CppKernel, Future[CppFunction]] = {k: Future() for k in group}
                with self._lock:
                    self._underway.update(made)
                coming |= {kernel.symbol: future for kernel, future in made.items()}
                try:
                    self._pool.submit(self._make, made, compiler)
                except RuntimeError:  # this interpreter ends and starts no more threads
                    self._make(made, compiler)
        return coming

    def results(self, coming: Mapping[str, Future[CppFunction]]) -> dict[str, CppFunction]:
        """Functions by symbol; raises `CppCompileError` if a kernel did not compile."""
        try:
            return {symbol: future.result() for symbol, future in coming.items()}
        except KeyboardInterrupt:
            self._processes.end_all()  # their own session gets no signal of the terminal
            raise

    def build(self, kernels: Iterable[CppKernel]) -> dict[str, CppFunction]:
        """Each kernel's function, by symbol."""
        return self.results(self.start(kernels))

    def _make(self, made: Mapping[CppKernel, Future[CppFunction]], compiler: Compiler) -> None:
        """Compile kernels that share a translation unit."""
        try:
            functions = self._compile(list(made), compiler)
            for kernel, future in made.items():
                future.set_result(functions[kernel.symbol])
        except BaseException as error:
            for future in made.values():
                future.set_exception(error)
        finally:
            with self._lock:
                for kernel in made:
                    self._underway.pop(kernel, None)

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
        """The function of a kernel that the cache has."""
        entry = self._cache.get(self._kernel_key(kernel))
        where = entry.read(_POINTER) if entry is not None else None
        if entry is None or where is None:
            return None
        name = json.loads(where)
        library = self._loaded.get(name)
        if library is None:
            unit = self._cache.entry(name)
            library = self._opened(unit) if unit is not None else None
        if library is None:
            entry.remove()  # else it stays in the place of the next one
            return None
        return self._function(kernel, library)

    def _opened(self, unit: Entry) -> CppLibrary | None:
        """The shared object of an entry. None if it is no longer what was stored, or if it cannot
        be loaded; the entry is then removed."""
        path = unit.checked(_LIBRARY)
        if path is None:
            return None
        try:
            library = CppLibrary(path)
        except OSError as error:
            unit.discard(str(error))
            return None
        with self._lock:
            self._loaded[unit.path.name] = library
        return library

    def _function(self, kernel: CppKernel, library: CppLibrary) -> CppFunction:
        with self._lock:
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
        kept: list[CppLibrary] = []  # open once, not once more when it is at its final path

        def fill(directory: Path) -> None:
            (directory / "kernels.cpp").write_text(source)
            kept.append(self._compiled(compiler, directory))

        unit = self._cache.get(key)
        library = self._opened(unit) if unit is not None else None
        if library is None:
            unit = self._cache.put(key, fill)
            library = self._opened(unit)
        if unit is None or library is None:
            raise CppCompileError("a compiled library was removed before it was loaded")
        functions = {k.symbol: self._function(k, library) for k in group}
        where = {_POINTER: json.dumps(unit.path.name)}
        for kernel in group:
            # A pointer that the disk has lost costs one compilation.
            self._cache.put_files(self._kernel_key(kernel), where, durable=False)
        return functions

    def _compiled(self, compiler: Compiler, directory: Path) -> CppLibrary:
        """Compile the source in a directory, and open the shared object that this gives. (What
        cannot be opened is not kept.)"""
        output = directory / _LIBRARY
        run_compiler(
            compiler,
            directory / "kernels.cpp",
            output,
            self._processes,
            self._knobs.compile_seconds,
        )
        try:
            check_shared_object(output)
            return CppLibrary(output)
        except (OSError, ValueError) as error:
            raise CppCompileError(
                f"{shlex.join(compiler.command)} made no shared object that can be loaded: {error}"
            ) from None
