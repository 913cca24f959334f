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
from functools import lru_cache, partial
from pathlib import Path

import torch

from dovetail_runtime.compile_pool import CompilePool, JobFailed, Reply
from dovetail_runtime.disk_cache import DiskCache, KeyParts
from dovetail_runtime.knobs import Knobs
from dovetail_runtime.lower import TritonBinary
from dovetail_runtime.plan import TritonKernel

# Changes whenever what is stored beside a cubin does.
ABI = "triton-1"

_PTX, _CUBIN, _DESCRIPTION = "kernel.ptx", "kernel.cubin", "kernel.json"
# What the processes that compile and interpret are told of a kernel.
_TEXT = ("source", "symbol", "signature", "constexprs")
_COMPILED = (*_TEXT, "aligned", "num_warps", "num_stages", "fp_fusion", "asserts")
_INTERPRETED = (*_TEXT, "scatters")
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


class TritonBuild:
    """Kernels on their way: `result()` waits and gives each symbol's binary."""

    def __init__(
        self, found: dict[str, TritonBinary], pending: dict[str, Future[TritonBinary]]
    ) -> None:
        self._found = found
        self._pending = pending

    def result(self) -> dict[str, TritonBinary]:
        """Binaries by symbol; raises `TritonCompileError` if a kernel did not compile."""
        return self._found | {symbol: f.result() for symbol, f in self._pending.items()}


class TritonBuilder:
    """Compiles kernels for one architecture into one cache. Thread-safe."""

    def __init__(self, knobs: Knobs, arch: int) -> None:
        self._cache = DiskCache(knobs.cache_dir, "triton", knobs.cache_limit_bytes)
        self._arch = arch
        self._pool = CompilePool(
            [sys.executable, "-u", str(_WORKER), "compile"],
            knobs.compile_workers,
            seconds=knobs.compile_seconds,
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
        pending: dict[str, Future[TritonBinary]] = {}
        for kernel in dict.fromkeys(kernels):
            key = self._key(kernel)
            binary = self._lookup(kernel, key)
            if binary is not None:
                found[kernel.symbol] = binary
                continue
            job = {name: getattr(kernel, name) for name in _COMPILED} | {"arch": self._arch}
            made: Future[TritonBinary] = Future()
            reply = self._pool.submit(job)
            reply.add_done_callback(partial(self._finish, kernel, key, made))
            pending[kernel.symbol] = made
        return TritonBuild(found, pending)

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
        return (entry.read(_PTX) or b"").decode()

    def _lookup(self, kernel: TritonKernel, key: KeyParts) -> TritonBinary | None:
        """The binary of a kernel that the cache has."""
        entry = self._cache.get(key)
        if entry is None:
            return None
        described, cubin = entry.read(_DESCRIPTION), entry.read(_CUBIN)
        if described is None or cubin is None:
            return None
        return _binary(kernel, json.loads(described), cubin)

    def _finish(
        self,
        kernel: TritonKernel,
        key: KeyParts,
        made: Future[TritonBinary],
        reply: Future[Reply],
    ) -> None:
        """Store what a worker has answered, in the thread that serves the worker: others compile
        while the disk writes."""
        try:
            made.set_result(self._stored(kernel, key, reply.result()))
        except JobFailed as error:
            made.set_exception(
                TritonCompileError(
                    f"kernel {kernel.symbol!r} does not compile:\n{error}\n{kernel.source}"
                )
            )
        except BaseException as error:
            made.set_exception(error)

    def _stored(self, kernel: TritonKernel, key: KeyParts, reply: Reply) -> TritonBinary:
        ptx, cubin = reply.pop("ptx"), base64.b64decode(reply.pop("cubin"))

        def fill(directory: Path) -> None:
            (directory / "kernel.py").write_text(kernel.source)
            (directory / _PTX).write_text(ptx)
            (directory / _CUBIN).write_bytes(cubin)
            (directory / _DESCRIPTION).write_text(json.dumps(reply))

        self._cache.put(key, fill)
        return _binary(kernel, reply, cubin)

    def _key(self, kernel: TritonKernel) -> KeyParts:
        parts = [("abi", ABI), ("triton", triton_version()), ("arch", str(self._arch))]
        for field in dataclasses.fields(kernel):
            value = getattr(kernel, field.name)
            parts.append((field.name, value if isinstance(value, str) else repr(value)))
        return parts


def _binary(kernel: TritonKernel, stored: Reply, cubin: bytes) -> TritonBinary:
    """A compiled kernel, with what the worker found of it."""
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
        cubin=cubin,
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
            job = {name: getattr(kernel, name) for name in _INTERPRETED} | {
                "arguments": str(sent),
                "results": str(received),
                "grid": grid,
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
