"""Triton kernels to cubins, ahead of time, in worker processes.

No GPU is needed to compile: the target is an argument. The source text becomes a file in the cache,
because Triton reads the source of what it compiles.
"""

from __future__ import annotations

import base64
import dataclasses
import importlib.metadata
import json
import sys
import threading
from collections.abc import Iterable
from concurrent.futures import Future
from functools import lru_cache, partial
from pathlib import Path
from typing import Any

import torch

from dovetail_runtime.compile_pool import CompilePool, JobFailed, Reply, finished
from dovetail_runtime.disk_cache import DiskCache, KeyParts
from dovetail_runtime.knobs import Knobs
from dovetail_runtime.lower import TritonBinary
from dovetail_runtime.plan import TritonKernel

# Changes whenever what is stored beside a cubin does.
ABI = "triton-1"

_PTX, _CUBIN, _DESCRIPTION = "kernel.ptx", "kernel.cubin", "kernel.json"
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


class TritonBuilder:
    """Compiles kernels for one architecture into one cache. Thread-safe."""

    def __init__(self, knobs: Knobs, arch: int) -> None:
        self._cache = DiskCache(knobs.cache_dir, "triton", knobs.cache_limit_bytes)
        self._arch = arch
        self._pool = CompilePool(
            [sys.executable, "-u", str(_WORKER)],
            knobs.compile_workers,
            seconds=knobs.compile_seconds,
        )
        self._lock = threading.Lock()
        self._underway: dict[TritonKernel, Future[TritonBinary]] = {}

    def warm(self, kernels: int) -> None:
        """Start workers for so many kernels, which then do not wait for Triton's import."""
        self._pool.warm(kernels)

    def close(self) -> None:
        """End the workers."""
        self._pool.close()

    def start(self, kernels: Iterable[TritonKernel]) -> dict[str, Future[TritonBinary]]:
        """Begin compiling what is not in the cache; returns at once. Each symbol's binary raises
        `TritonCompileError` if the kernel did not compile."""
        return {kernel.symbol: self._begun(kernel) for kernel in dict.fromkeys(kernels)}

    def _begun(self, kernel: TritonKernel) -> Future[TritonBinary]:
        with self._lock:
            underway = self._underway.get(kernel)
        if underway is not None:
            return underway
        key = self._key(kernel)
        binary = self._lookup(kernel, key)
        if binary is not None:
            return finished(binary)
        made: Future[TritonBinary] = Future()
        with self._lock:
            self._underway[kernel] = made
        reply = self._pool.submit({**_fields(kernel), "arch": self._arch})
        reply.add_done_callback(partial(self._finish, kernel, key, made))
        return made

    def build(self, kernels: Iterable[TritonKernel]) -> dict[str, TritonBinary]:
        """Each kernel's binary, by symbol."""
        return {symbol: future.result() for symbol, future in self.start(kernels).items()}

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
        self, kernel: TritonKernel, key: KeyParts, made: Future[TritonBinary], reply: Future[Reply]
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
        finally:
            with self._lock:
                self._underway.pop(kernel, None)

    def _stored(self, kernel: TritonKernel, key: KeyParts, reply: Reply) -> TritonBinary:
        ptx, cubin = reply.pop("ptx"), base64.b64decode(reply.pop("cubin"))
        texts = {"kernel.py": kernel.source, _PTX: ptx, _DESCRIPTION: json.dumps(reply)}
        self._cache.put_files(key, {**texts, _CUBIN: cubin})
        return _binary(kernel, reply, cubin)

    def _key(self, kernel: TritonKernel) -> KeyParts:
        parts = [("abi", ABI), ("triton", triton_version()), ("arch", str(self._arch))]
        for name, value in _fields(kernel).items():
            parts.append((name, value if isinstance(value, str) else repr(value)))
        return parts


def _fields(kernel: TritonKernel) -> dict[str, Any]:
    return {field.name: getattr(kernel, field.name) for field in dataclasses.fields(kernel)}


def _binary(kernel: TritonKernel, stored: Reply, cubin: bytes) -> TritonBinary:
    """A compiled kernel, with what the worker found of it."""
    if stored["clusters"] != 1:
        raise TritonCompileError(
            f"kernel {kernel.symbol!r} wants thread block clusters, which the executor has not"
        )
    kinds: list[str] = []
    for name, kind in kernel.signature:
        if kind.startswith("*"):
            # Loads of several elements at once stop the device where they are not aligned; what
            # reads by descriptors checks no address.
            kinds.append("aligned pointer" if name in kernel.aligned else "pointer")
        elif kind in ("i32", "i64"):
            kinds.append(kind)
        elif kind != "constexpr":
            raise TritonCompileError(
                f"kernel {kernel.symbol!r} has a parameter {name} of type {kind}: a launch passes "
                "pointers, i32 and i64 only"
            )
    return TritonBinary(
        entry=stored["entry"],
        cubin=cubin,
        parameters=tuple(kinds),
        shared_bytes=stored["shared_bytes"],
        threads=stored["threads"],
        scratch_parameters=stored["ptx_parameters"] - len(kinds),
        scratch_bytes=stored["global_scratch_bytes"],
    )
