"""A worker process for Triton: compiles kernels to cubins.

Run as a script, so that it imports Triton and not this package. A job is a JSON line; see
`triton_build.py` for its fields.
"""

from __future__ import annotations

import base64
import contextlib
import hashlib
import importlib
import importlib.util
import json
import os
import re
import sys
import tempfile
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any


def load_source(source: str, symbol: str, directory: str) -> Any:
    """The object called `symbol` in a module of this source: a file, for Triton reads it."""
    digest = hashlib.sha256(source.encode()).hexdigest()[:24]
    path = Path(directory) / f"kernel_{digest}.py"
    path.write_text(source)
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    if not hasattr(module, symbol):
        raise ValueError(f"the source defines no function {symbol!r}")
    return getattr(module, symbol)


def import_compiler() -> None:
    """Import all of Triton that a first kernel would wait for."""
    importlib.import_module("triton.compiler.code_generator")
    cache: Any = importlib.import_module("triton.runtime.cache")
    # The digest of Triton's own 500 MB: its cache here serves this process alone.
    if hasattr(cache, "triton_key"):
        cache.triton_key = lambda: ""


def compile_kernel(job: dict[str, Any], directory: str) -> dict[str, Any]:
    """Compile for compute capability `arch` (90 for an H100)."""
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    function = load_source(job["source"], job["symbol"], directory)
    names = [name for name, _ in job["signature"]]
    attributes = {(names.index(name),): [["tt.divisibility", 16]] for name in job["aligned"]}
    source = ASTSource(
        fn=function,
        signature=dict(job["signature"]),
        constexprs={(names.index(name),): value for name, value in job["constexprs"]},
        attrs=attributes,
    )
    options = {
        "num_warps": job["num_warps"],
        "num_stages": job["num_stages"],
        "enable_fp_fusion": job["fp_fusion"],
        "debug": job["asserts"],
        "sanitize_overflow": False,
    }
    target = GPUTarget("cuda", job["arch"], 32)
    kernel = triton.compile(source, target=target, options=options)
    if packs_undefined_halves(kernel.asm["ptx"]):
        os.environ[_NO_LLVM_PASSES] = "1"
        try:
            kernel = triton.compile(source, target=target, options=options)
        finally:
            del os.environ[_NO_LLVM_PASSES]
    metadata = kernel.metadata
    return {
        "cubin": base64.b64encode(kernel.asm["cubin"]).decode(),
        "ptx": kernel.asm["ptx"],
        "entry": metadata.name,
        "shared_bytes": metadata.shared,
        "threads": metadata.num_warps * 32,
        "ptx_parameters": count_parameters(kernel.asm["ptx"], metadata.name),
        "global_scratch_bytes": getattr(metadata, "global_scratch_size", 0) or 0,
        "clusters": getattr(metadata, "num_ctas", 1),
    }


_NO_LLVM_PASSES = "DISABLE_LLVM_OPT"  # Triton reads it before each compile
_PACK = re.compile(r"mov\.b32\s+%r\d+,\s*\{\s*(%rs\d+),\s*(%rs\d+)\s*\}")
_WRITTEN = re.compile(r"^\s*(?:@!?%p\d+\s+)?[\w.]+\s+(?:\{([^}]*)\}|(%rs\d+))\s*,", re.MULTILINE)


def packs_undefined_halves(ptx: str) -> bool:
    """Whether two 16-bit registers become one of 32 bits, and one of them is written nowhere.

    LLVM packs small integers so, where it needs only one result of two. The assembler takes the
    whole register for undefined: sums of places came out as 0 (Triton 3.6, an H100).
    """
    packed = {name for pair in _PACK.findall(ptx) for name in pair}
    if not packed:
        return False
    for group, single in _WRITTEN.findall(ptx):
        packed.difference_update(re.findall(r"%rs\d+", group) if group else (single,))
    return bool(packed)


def count_parameters(ptx: str, entry: str) -> int:
    """How many parameters the entry takes, with those that Triton appends for scratch memory."""
    match = re.search(r"\.entry\s+" + re.escape(entry) + r"\s*\((.*?)\)", ptx, re.DOTALL)
    if match is None:
        raise ValueError(f"no entry {entry!r} in the PTX")
    return len(re.findall(r"\.param\b", match.group(1)))


def serve(
    handler: Callable[[dict[str, Any], str], dict[str, Any]],
    prepare: Callable[[], None] = lambda: None,
) -> None:
    """Answer jobs by `handler`, which is given a folder for its files, until the input ends."""
    # What libraries print must not mix with the replies.
    replies = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)
    with tempfile.TemporaryDirectory(prefix="dovetail-triton-") as directory:
        # What is worth keeping the caller keeps; Triton's own cache goes with this process.
        os.environ["TRITON_CACHE_DIR"] = directory
        with contextlib.suppress(ImportError):  # which each job tells
            prepare()
        for line in sys.stdin:
            try:
                reply = handler(json.loads(line), directory)
            except Exception:
                reply = {"error": traceback.format_exc(limit=-8)}
            replies.write(json.dumps(reply) + "\n")


if __name__ == "__main__":
    serve(compile_kernel, import_compiler)
