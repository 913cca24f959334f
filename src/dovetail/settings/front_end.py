"""Settings of torch.compile's front end, of its ahead-of-time autograd, and of `torch.compiler`."""

from __future__ import annotations

from dovetail.settings.meaning import (
    ChangesNothing,
    Meaning,
    Refused,
    SetsArgument,
    SetsOption,
    SetsSwitch,
    Setting,
)

_ALWAYS = ChangesNothing("it is always so")
_CAPTURES_DATA = SetsSwitch("captures_data")
_NUMBERS = ChangesNothing(
    "numbers are compiled in until they change, and are inputs of the graph from then on"
)
_GUARDS = ChangesNothing(
    "guards are native code; options={'guard_filter_fn': ...} drops those that are not needed"
)
_MARKS = Refused("mark tensors with dovetail.mark_dynamic, mark_static or mark_unbacked")
_LOGS = ChangesNothing("dovetail.report and dovetail.explain tell what was compiled, and why")
_DDP = ChangesNothing("a module in DistributedDataParallel is compiled as one")
_PLAN_CACHE = ChangesNothing("generated code alone is kept on disk, in DOVETAIL_CACHE_DIR")
_RECOMPUTE = ChangesNothing(
    "what is recomputed is chosen by min-cut; the option activation_memory_budget says how much"
)

_DYNAMO: tuple[tuple[str, object, Meaning], ...] = (
    ("recompile_limit", 8, SetsOption("recompile_limit")),
    (
        "accumulated_recompile_limit",
        256,
        ChangesNothing("recompile_limit bounds each compiled function"),
    ),
    ("automatic_dynamic_shapes", True, SetsArgument("dynamic")),
    ("assume_static_by_default", True, SetsArgument("dynamic")),
    ("dynamic_shapes", True, SetsArgument("dynamic")),
    ("disable", False, SetsSwitch("disabled")),
    ("suppress_errors", False, SetsSwitch("suppress_errors")),
    ("automatic_dynamic_shapes_mark_as", "dynamic", _MARKS),
    ("capture_scalar_outputs", False, _CAPTURES_DATA),
    ("capture_dynamic_output_shape_ops", False, _CAPTURES_DATA),
    ("specialize_int", False, _NUMBERS),
    ("specialize_float", False, _NUMBERS),
    ("allow_unspec_int_on_nn_module", False, _NUMBERS),
    ("force_parameter_static_shapes", True, _ALWAYS),
    ("force_nn_module_property_static_shapes", True, _ALWAYS),
    ("prefer_deferred_runtime_asserts_over_guards", False, _GUARDS),
    ("inline_inbuilt_nn_modules", True, _ALWAYS),
    ("guard_nn_modules", True, _GUARDS),
    ("guard_nn_modules_using_dict_tags", True, _GUARDS),
    ("use_recursive_dict_tags_for_guards", False, _GUARDS),
    ("skip_nnmodule_hook_guards", True, _GUARDS),
    ("skip_fsdp_guards", True, _GUARDS),
    ("allow_rnn", False, ChangesNothing("recurrent layers are captured in any case")),
    ("trace_numpy", True, _ALWAYS),
    ("capture_func_transforms", True, _ALWAYS),
    ("capture_autograd_function", True, _ALWAYS),
    ("nested_graph_breaks", False, ChangesNothing("graphs break inside of calls in any case")),
    ("rewrite_assert_with_torch_assert", True, _ALWAYS),
    ("only_allow_pt2_compliant_ops", False, _ALWAYS),
    ("optimize_ddp", True, _DDP),
    ("optimize_ddp_lazy_compile", False, _DDP),
    ("enable_compiler_collectives", False, Refused("ranks do not agree on what they compile")),
    ("compiled_autograd", False, Refused("call dovetail.compiled_autograd for the backward")),
    ("error_on_recompile", False, Refused('call dovetail.set_stance("fail_on_recompile")')),
    (
        "fail_on_recompile_limit_hit",
        False,
        Refused("fullgraph=True raises an error where recompile_limit is reached"),
    ),
    ("caching_precompile", False, _PLAN_CACHE),
    ("automatic_dynamic_local_pgo", True, _PLAN_CACHE),
    ("automatic_dynamic_remote_pgo", None, _PLAN_CACHE),
    ("prepare_freezing", False, ChangesNothing("the option constant_weights says it")),
    ("verbose", False, _LOGS),
    ("report_guard_failures", True, _LOGS),
    ("log_file_name", None, _LOGS),
    ("log_compilation_metrics", True, _LOGS),
    ("debug_dir_root", "", _LOGS),
    ("cprofile", False, _LOGS),
    ("repro_after", None, _LOGS),
    ("repro_level", 2, _LOGS),
    ("verify_correctness", False, Refused("compare with dovetail.set_stance('force_eager')")),
    ("dont_skip_tracing", False, _ALWAYS),
    ("trace_autograd_ops", False, _ALWAYS),
    ("skip_fsdp_hooks", True, _ALWAYS),
)

_FUNCTORCH: tuple[tuple[str, object, Meaning], ...] = (
    ("activation_memory_budget", 1.0, SetsOption("activation_memory_budget")),
    ("activation_memory_budget_runtime_estimator", "flops", _RECOMPUTE),
    ("activation_memory_budget_solver", "dp", _RECOMPUTE),
    ("aggressive_recomputation", False, _RECOMPUTE),
    ("ban_recompute_used_far_apart", True, _RECOMPUTE),
    ("ban_recompute_long_fusible_chains", True, _RECOMPUTE),
    ("ban_recompute_materialized_backward", True, _RECOMPUTE),
    ("ban_recompute_not_in_allowlist", True, _RECOMPUTE),
    ("ban_recompute_reductions", True, _RECOMPUTE),
    ("recompute_views", False, _RECOMPUTE),
    ("treat_parameters_as_free_to_save", True, _ALWAYS),
    ("enable_activation_offloading", False, Refused("what is saved stays on its device")),
    (
        "donated_buffer",
        True,
        ChangesNothing("what a backward reads last is freed there; retain_graph=True keeps it"),
    ),
    ("enable_autograd_cache", True, _PLAN_CACHE),
    ("enable_remote_autograd_cache", None, _PLAN_CACHE),
    ("autograd_cache_allow_custom_autograd_functions", False, _PLAN_CACHE),
    ("bundled_autograd_cache", False, _PLAN_CACHE),
    ("strict_autograd_cache", False, _PLAN_CACHE),
    ("functionalize_rng_ops", False, _ALWAYS),
    ("graphsafe_rng_functionalization", True, _ALWAYS),
    ("view_replay_for_aliased_outputs", True, _ALWAYS),
    ("guess_tangent_strides_as_outputs", True, _ALWAYS),
    ("cse", True, _ALWAYS),
    ("backward_pass_autocast", "same_as_forward", Refused("a backward runs in its forward's mode")),
    ("joint_custom_pass", None, Refused("a backend of your own sees the graphs")),
    ("debug_partitioner", False, _LOGS),
    ("static_weight_shapes", True, _ALWAYS),
)

_COMPILER: tuple[tuple[str, object, Meaning], ...] = (
    ("job_id", None, _PLAN_CACHE),
    ("cache_key_tag", "", ChangesNothing("DOVETAIL_CACHE_DIR names a cache of its own")),
    ("pgo_extra_read_key", None, _PLAN_CACHE),
    ("pgo_extra_write_key", None, _PLAN_CACHE),
    (
        "force_disable_caches",
        False,
        ChangesNothing("code is found by its whole source: DOVETAIL_CACHE_DIR names a new cache"),
    ),
    ("compile_on_one_rank", False, Refused("each rank compiles, and finds others' code on disk")),
    ("dynamic_sources", "", _MARKS),
    ("dynamic_values", "", _MARKS),
    ("static_sources", "", _MARKS),
    ("unbacked_sources", "", _MARKS),
    ("force_cudagraph_gc", False, ChangesNothing("recording needs no collection")),
)

FRONT_END: tuple[Setting, ...] = (
    *(Setting(name, "dynamo", default, meaning) for name, default, meaning in _DYNAMO),
    *(Setting(name, "functorch", default, meaning) for name, default, meaning in _FUNCTORCH),
    *(Setting(name, "compiler", default, meaning) for name, default, meaning in _COMPILER),
)
