"""What torch.compile's settings mean here: one row for each that tutorials and libraries use.

A setting sets an option of ours, or changes nothing because of how Dovetail works (one warning
says so), or is refused, because ignoring it would give another program than was asked for.
"""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Setting:
    """One setting of torch's: the option of ours that it sets, or why there is none. `refused`:
    any value but the `harmless` one is an error."""

    name: str
    option: str = ""
    reason: str = ""
    refused: bool = False
    harmless: Any = None


def _ignored(reason: str, *names: str) -> Iterator[Setting]:
    return (Setting(name, reason=reason) for name in names)


def _refused(reason: str, harmless: Any, *names: str) -> Iterator[Setting]:
    return (Setting(name, reason=reason, refused=True, harmless=harmless) for name in names)


_ALWAYS = "it is always so"
_BY_COST = "a cost model decides it"
_ROUNDS = "a cast that is written rounds, always"
_DUMPS = "DOVETAIL_DEBUG=FOLDER writes every stage of each graph"
_CACHED = "compiled code is always cached on disk, DOVETAIL_CACHE_DIR says where"
_OWN_GRAPHS = "it rewrites graphs of another compiler: give backend= a function that rewrites ours"
_NO_SHIPPING = "there is no ahead-of-time package"

# Of `compile(options={...})`: the names of torch._inductor.config.
INDUCTOR: Mapping[str, Setting] = {
    setting.name: setting
    for setting in (
        Setting("max_autotune", "max_autotune"),
        Setting("max_autotune_gemm", "max_autotune"),
        Setting("triton.cudagraphs", "cudagraphs"),
        Setting("freezing", "constant_weights"),
        Setting("fallback_random", "fallback_random"),
        Setting("guard_filter_fn", "guard_filter_fn"),
        Setting("activation_memory_budget", "activation_memory_budget"),
        *_ignored(_ALWAYS, "epilogue_fusion", "prologue_fusion", "pattern_matcher", "dce"),
        *_ignored(_ALWAYS, "inplace_buffers", "allow_buffer_reuse", "memory_planning"),
        *_ignored(_ALWAYS, "joint_graph_constant_folding", "cpp_wrapper"),
        *_ignored(_ALWAYS, "reorder_for_locality", "keep_output_stride", "triton.cudagraph_trees"),
        *_ignored(_ALWAYS, "split_reductions", "triton.persistent_reductions"),
        *_ignored(_ALWAYS, "implicit_fallbacks", "combo_kernels"),
        *_ignored(_BY_COST, "graph_partition", "reorder_for_peak_memory", "deterministic"),
        *_ignored(_BY_COST, "shape_padding", "comprehensive_padding", "pad_outputs"),
        *_ignored(_BY_COST, "layout_optimization", "conv_1x1_as_mm", "use_mixed_mm"),
        *_ignored(_BY_COST, "force_fuse_int_mm_with_mul", "force_layout_optimization"),
        *_ignored(_BY_COST, "max_fusion_size", "aggressive_fusion", "max_autotune_pointwise"),
        *_ignored(_BY_COST, "coordinate_descent_tuning", "realize_opcount_threshold"),
        *_ignored(_BY_COST, "coordinate_descent_check_all_directions", "benchmark_fusion"),
        *_ignored(_BY_COST, "max_autotune_gemm_backends", "max_autotune_conv_backends"),
        *_ignored(_BY_COST, "max_autotune_gemm_search_space", "benchmark_kernel"),
        *_ignored(_BY_COST, "triton.multi_kernel", "b2b_gemm_pass", "loop_ordering_after_fusion"),
        *_ignored(_ROUNDS, "emulate_precision_casts", "eager_numerics.division_rounding"),
        *_ignored(_DUMPS, "trace.enabled", "trace.graph_diagram", "debug", "verbose_progress"),
        *_ignored(_DUMPS, "trace.debug_dir", "trace.fx_graph", "trace.output_code"),
        *_ignored(_CACHED, "fx_graph_cache", "fx_graph_remote_cache", "autotune_local_cache"),
        *_ignored(_CACHED, "force_disable_caches", "bundle_triton_into_fx_graph_cache"),
        *_ignored("kernels have names of their own", "triton.unique_kernel_names"),
        *_ignored("kernels have names of their own", "triton.descriptive_names"),
        *_ignored("sizes are guarded before each call", "size_asserts", "alignment_asserts"),
        *_ignored("DOVETAIL_COMPILE_PROCESSES says how many", "compile_threads"),
        *_ignored("the CPU is asked what it has", "cpp.simdlen", "cpp.threads", "cpp.vec_isa_ok"),
        *_ignored("the device is asked for its time", "profile_bandwidth"),
        *_ignored("there is no such check", "nan_asserts", "scalar_asserts"),
        *_refused(_OWN_GRAPHS, None, "pre_grad_custom_pass", "joint_custom_pre_pass"),
        *_refused(_OWN_GRAPHS, None, "joint_custom_post_pass", "post_grad_custom_pre_pass"),
        *_refused(_OWN_GRAPHS, None, "post_grad_custom_post_pass", "custom_partitioner_fn"),
        *_refused("nothing is promised about other batch sizes", False, "batch_invariant"),
        *_refused(_NO_SHIPPING, None, "aot_inductor.output_path", "aot_inductor.package"),
    )
}

# Of `dovetail.config`: the names of torch._dynamo.config and torch._functorch.config.
_STATIC = "a size becomes symbolic where it changes, or as `dynamic=` and marks say"
FRONT_END: Mapping[str, Setting] = {
    setting.name: setting
    for setting in (
        *(Setting(name, "recompile_limit") for name in ("recompile_limit", "cache_size_limit")),
        Setting("suppress_errors", "suppress_errors"),
        Setting("capture_scalar_outputs", "captures_data"),
        Setting("capture_dynamic_output_shape_ops", "captures_data"),
        Setting("automatic_dynamic_shapes", "automatic_dynamic_shapes"),
        Setting("assume_static_by_default", "assume_static_by_default"),
        Setting("activation_memory_budget", "activation_memory_budget"),
        Setting("disable", "disable"),
        *_ignored(_STATIC, "dynamic_shapes", "specialize_int", "specialize_float"),
        *_ignored(_STATIC, "force_parameter_static_shapes", "allow_unspec_int_on_nn_module"),
        *_ignored(_STATIC, "force_nn_module_property_static_shapes"),
        *_ignored("each compiled function has the same limit", "accumulated_recompile_limit"),
        *_ignored("each compiled function has the same limit", "accumulated_cache_size_limit"),
        *_ignored(_ALWAYS, "inline_inbuilt_nn_modules", "guard_nn_modules", "donated_buffer"),
        *_ignored(_ALWAYS, "nested_graph_breaks", "trace_numpy", "trace_autograd_ops"),
        *_ignored(_ALWAYS, "skip_fsdp_hooks", "allow_rnn", "capture_func_transforms"),
        *_ignored(_ALWAYS, "use_recursive_dict_tags_for_guards"),
        *_ignored("errors tell the user's line", "verbose"),
        *_ignored("gradients are reduced as eager reduces them", "optimize_ddp"),
        *_ignored("dovetail.compiled_autograd() captures backwards", "compiled_autograd"),
        *_ignored("dovetail.report tells of breaks and recompiles", "report_guard_failures"),
        *_ignored(_CACHED, "caching_precompile", "enable_autograd_cache"),
    )
}


def ours_of(name: str, value: Any, table: Mapping[str, Setting]) -> tuple[str, Any] | None:
    """(option of ours, value) for a setting of torch's; None where it changes nothing, of which
    one warning tells. ValueError, with the reason, for one that is refused."""
    setting = table[name]
    if setting.refused:
        if value == setting.harmless:
            return None
        raise ValueError(f"{name}={value!r} cannot be honoured: {setting.reason}")
    if setting.option:
        return setting.option, value
    warn_once(f"{name} changes nothing here: {setting.reason}")
    return None


_TOLD: set[str] = set()


def warn_once(message: str) -> None:
    """Warn, unless it was said before."""
    if message not in _TOLD:
        _TOLD.add(message)
        warnings.warn(message, UserWarning, stacklevel=2)


def known_to_torch(name: str) -> bool:
    """Is it a setting of torch's compiler, where the program has loaded that?"""
    config = sys.modules.get("torch._inductor.config")
    holds: Callable[[str], bool] | None = getattr(config, "__contains__", None)
    names = getattr(config, "_config", {})
    return name in names or (holds is not None and name in vars(config))
