"""Triton kernels to cubins, ahead of time, in worker processes; and run interpreted on a CPU.

No GPU is needed to compile: the target is an argument. The source text becomes a file in the cache,
because Triton reads the source of what it compiles.
"""

from __future__ import annotations

import base64
import dataclasses
import importlib.metadata
import json
import sys
import tempfile
from collections.abc import Iterable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

import torch

from dovetail_runtime.compile_pool import CompilePool, JobFailed, Reply
from dovetail_runtime.disk_cache import DiskCache, KeyParts
from dovetail_runtime.knobs import Knobs
from dovetail_runtime.lower import TritonBinary
from dovetail_runtime.plan import TritonKernel

# Changes whenever what is stored beside a cubin does.
ABI = "triton-1"

_WORKER = Path(__file__).with_name("triton_worker.py")


class TritonCompileError(RuntimeError):
    """Triton refused a kernel; the message holds what it said."""


@lru_cache(maxsize=1)
def triton_version() -> str:
    """The installed Triton's version; an error that names the package if there is none."""
    try:
        return importlib.metadata.version("triton")
    except importlib.metadata.PackageNotFoundError:
        raise TritonCompileError(
            "GPU kernels need Triton, which is not installed: pip install triton"
        ) from None


def current_arch() -> int:
    """The compute capability of the current GPU, as Triton counts it (90 for an H100)."""
    major, minor = torch.cuda.get_device_capability()
    return major * 10 + minor


@dataclass(frozen=True)
class _Pending:
    kernel: TritonKernel
    reply: Future[Reply]
    key: KeyParts


class TritonBuild:
    """Kernels on their way: `result()` waits and gives each symbol's binary."""

    def __init__(
        self, builder: TritonBuilder, found: dict[str, TritonBinary], pending: list[_Pending]
    ) -> None:
        self._builder = builder
        self._found = found
        self._pending = pending

    def result(self) -> dict[str, TritonBinary]:
        """Binaries by symbol; raises `TritonCompileError` if a kernel did not compile."""
        while self._pending:
            task = self._pending.pop()
            self._found[task.kernel.symbol] = self._builder.finish(task)
        return dict(self._found)


class TritonBuilder:
    """Compiles kernels for one architecture into one cache. Thread-safe."""

    def __init__(self, knobs: Knobs, arch: int) -> None:
        self._cache = DiskCache(knobs.cache_dir, "triton", knobs.cache_limit_bytes)
        self._arch = arch
        self._pool = CompilePool(
            [sys.executable, "-u", str(_WORKER), "compile"], knobs.compile_workers
        )

    def warm(self) -> None:
        """Start the workers, so that the first kernel does not wait for Triton's import."""
        self._pool.warm()

    def close(self) -> None:
        """End the workers."""
        self._pool.close()

    def start(self, kernels: Iterable[TritonKernel]) -> TritonBuild:
        """Begin compiling what is not in the cache; returns at once."""
        found: dict[str, TritonBinary] = {}
        pending: list[_Pending] = []
        for kernel in dict.fromkeys(kernels):
            key = self._key(kernel)
            entry = self._cache.get(key)
            if entry is not None:
                found[kernel.symbol] = _read(kernel, entry)
                continue
            job = {
                "source": kernel.source,
                "symbol": kernel.symbol,
                "signature": kernel.signature,
                "constexprs": kernel.constexprs,
                "aligned": kernel.aligned,
                "num_warps": kernel.num_warps,
                "num_stages": kernel.num_stages,
                "fp_fusion": True,
                "asserts": kernel.asserts,
                "arch": self._arch,
            }
            pending.append(_Pending(kernel, self._pool.submit(job), key))
        return TritonBuild(self, found, pending)

    def build(self, kernels: Iterable[TritonKernel]) -> dict[str, TritonBinary]:
        """Each kernel's binary, by symbol."""
        return self.start(kernels).result()

    def explain_miss(self, kernel: TritonKernel) -> str:
        """Why `kernel` had to be compiled."""
        return self._cache.explain_miss(self._key(kernel))

    def assembler_text(self, kernel: TritonKernel) -> str:
        """The PTX of a kernel that was built."""
        entry = self._cache.get(self._key(kernel))
        if entry is None:
            raise LookupError(f"kernel {kernel.symbol!r} is not in the cache")
        return (entry / "kernel.ptx").read_text()

    def finish(self, task: _Pending) -> TritonBinary:
        """Wait for one kernel and put it into the cache."""
        try:
            reply = task.reply.result()
        except JobFailed as error:
            raise TritonCompileError(
                f"kernel {task.kernel.symbol!r} does not compile:\n{error}\n{task.kernel.source}"
            ) from None

        def fill(directory: Path) -> None:
            (directory / "kernel.py").write_text(task.kernel.source)
            (directory / "kernel.ptx").write_text(reply.pop("ptx"))
            (directory / "kernel.cubin").write_bytes(base64.b64decode(reply.pop("cubin")))
            (directory / "kernel.json").write_text(json.dumps(reply))

        entry = self._cache.put(task.key, fill)
        return _read(task.kernel, entry)

    def _key(self, kernel: TritonKernel) -> KeyParts:
        parts = [("abi", ABI), ("triton", triton_version()), ("arch", str(self._arch))]
        for field in dataclasses.fields(kernel):
            value = getattr(kernel, field.name)
            parts.append((field.name, value if isinstance(value, str) else repr(value)))
        return parts


def _read(kernel: TritonKernel, entry: Path) -> TritonBinary:
    """The binary stored in a cache entry."""
    stored = json.loads((entry / "kernel.json").read_text())
    if stored["clusters"] != 1:
        raise TritonCompileError(
            f"kernel {kernel.symbol!r} wants thread block clusters, which the executor has not"
        )
    kinds = tuple(
        "pointer" if kind.startswith("*") else kind
        for _, kind in kernel.signature
        if kind != "constexpr"
    )
    unknown = [kind for kind in kinds if kind not in ("pointer", "i32", "i64")]
    if unknown:
        raise TritonCompileError(
            f"kernel {kernel.symbol!r} has parameters of type {unknown}: a launch passes pointers, "
            "i32 and i64 only"
        )
    scratch_parameters = stored["ptx_parameters"] - len(kinds)
    # Loads of several elements at once stop the device where they are not aligned; what reads by
    # descriptors checks no address.
    names = [name for name, kind in kernel.signature if kind != "constexpr"]
    kinds = tuple(
        "aligned pointer" if kind == "pointer" and name in kernel.aligned else kind
        for name, kind in zip(names, kinds, strict=True)
    )
    return TritonBinary(
        entry=stored["entry"],
        cubin=(entry / "kernel.cubin").read_bytes(),
        parameters=kinds,
        shared_bytes=stored["shared_bytes"],
        threads=stored["threads"],
        scratch_parameters=scratch_parameters,
        scratch_bytes=stored["global_scratch_bytes"],
    )


class TritonInterpreter:
    """Runs Triton kernels on CPU tensors under Triton's interpreter, in a process of its own (the
    interpreter must be chosen before Triton is imported). It is slow: for tests."""

    def __init__(self) -> None:
        self._pool = CompilePool(
            [sys.executable, "-u", str(_WORKER), "interpret"], 1, {"TRITON_INTERPRET": "1"}
        )

    def __call__(
        self,
        kernel: TritonKernel,
        arguments: Sequence[torch.Tensor | int],
        grid: tuple[int, int, int],
    ) -> None:
        """Run one launch; the tensors' memory holds the result afterwards."""
        storages: list[torch.Tensor] = []
        numbers: dict[int, int] = {}
        described: list[dict[str, object] | int] = []
        for argument in arguments:
            if not isinstance(argument, torch.Tensor):
                described.append(argument)
                continue
            storage = argument.untyped_storage()
            if storage.data_ptr() not in numbers:
                numbers[storage.data_ptr()] = len(storages)
                storages.append(_bytes_of(storage))
            described.append(
                {
                    "storage": numbers[storage.data_ptr()],
                    "dtype": str(argument.dtype).removeprefix("torch."),
                    "offset": argument.storage_offset(),
                    "shape": list(argument.shape),
                    "stride": list(argument.stride()),
                }
            )
        with tempfile.TemporaryDirectory(prefix="dovetail-interpret-") as directory:
            sent, received = Path(directory) / "arguments.pt", Path(directory) / "results.pt"
            torch.save((storages, described), sent)
            job = {
                "source": kernel.source,
                "symbol": kernel.symbol,
                "signature": kernel.signature,
                "constexprs": kernel.constexprs,
                "arguments": str(sent),
                "results": str(received),
                "grid": grid,
                "scatters": kernel.asserts,  # which are what kernels assert of
            }
            self._pool.submit(job).result()
            for mine, result in zip(storages, torch.load(received, weights_only=True), strict=True):
                mine.copy_(result)

    def close(self) -> None:
        """End the process."""
        self._pool.close()


def _bytes_of(storage: torch.UntypedStorage) -> torch.Tensor:
    return torch.empty(0, dtype=torch.uint8).set_(storage)


@lru_cache(maxsize=1)
def _interpreter() -> TritonInterpreter:
    return TritonInterpreter()


def run_in_interpreter(
    kernel: TritonKernel,
    arguments: Sequence[torch.Tensor | int],
    grid: tuple[int, int, int],
) -> None:
    """Run one launch on CPU tensors; a `TritonLauncher` for `ReferenceExecutor`."""
    _interpreter()(kernel, arguments, grid)
