"""What `torch.compiler` offers, by the same names: `torch.compiler.X` is `dovetail.compiler.X`.

`__all__` holds every public name of `torch.compiler`, with its parameters.
"""

from dovetail_capture import (
    allow_in_graph,
    assume_constant_result,
    disable,
    is_compiling,
    is_dynamo_compiling,
    is_exporting,
    nonstrict_trace,
    reset,
    substitute_in_graph,
    wrap_numpy,
)

from dovetail import config
from dovetail.backends.registry import get_default_backend, list_backends, set_default_backend
from dovetail.compilation import compile, set_stance
from dovetail.compiler import precompile
from dovetail.compiler.cache_artifacts import load_cache_artifacts, save_cache_artifacts
from dovetail.compiler.guard_filters import (
    keep_portable_guards_unsafe,
    keep_tensor_guards_unsafe,
    skip_all_guards_unsafe,
    skip_guard_on_all_nn_modules_unsafe,
    skip_guard_on_globals_unsafe,
    skip_guard_on_inbuilt_nn_modules_unsafe,
)
from dovetail.compiler.precompile import PrecompileError, load_compiled_function
from dovetail.compiler.regions import (
    cudagraph_mark_step_begin,
    cudagraph_mark_warmup_incomplete,
    nested_compile_region,
    set_enable_guard_collectives,
)

__all__ = [
    "PrecompileError", "allow_in_graph", "assume_constant_result", "compile", "config",
    "cudagraph_mark_step_begin", "cudagraph_mark_warmup_incomplete", "disable",
    "get_default_backend", "is_compiling", "is_dynamo_compiling", "is_exporting",
    "keep_portable_guards_unsafe", "keep_tensor_guards_unsafe", "list_backends",
    "load_cache_artifacts", "load_compiled_function", "nested_compile_region", "nonstrict_trace",
    "precompile", "reset", "save_cache_artifacts", "set_default_backend",
    "set_enable_guard_collectives", "set_stance", "skip_all_guards_unsafe",
    "skip_guard_on_all_nn_modules_unsafe", "skip_guard_on_globals_unsafe",
    "skip_guard_on_inbuilt_nn_modules_unsafe", "substitute_in_graph", "wrap_numpy",
]  # fmt: skip
