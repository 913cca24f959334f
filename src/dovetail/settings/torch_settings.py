"""What settings of torch.compile's modules mean here: a meaning, with the settings that it is the
meaning of and torch's defaults."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class SetsOption:
    """It is the option `field` of `dovetail.Options`."""

    field: str


@dataclass(frozen=True)
class SetsSwitch:
    """It is the field `switch` of capture's `Switches`, which hold for every compiled function."""

    switch: str


@dataclass(frozen=True)
class SetsArgument:
    """It is an argument in calls of `compile` that do not give it."""

    argument: str


@dataclass(frozen=True)
class ChangesNothing:
    """It is accepted, with one warning that gives the reason where it is not the default."""

    reason: str


@dataclass(frozen=True)
class Refused:
    """Only the default can be had; any other value raises an error that gives the reason and the
    way round."""

    reason: str


Meaning = SetsOption | SetsSwitch | SetsArgument | ChangesNothing | Refused


@dataclass(frozen=True)
class Setting:
    """A setting: its name, with its group before a dot ("triton.cudagraphs"), torch's default, and
    what it means. `module` is where torch has it: "dynamo", "inductor", "functorch" or
    "compiler"."""

    name: str
    module: str
    default: object
    meaning: Meaning


_ALWAYS = ChangesNothing("it is always so")
_MARKS = Refused("mark tensors with dovetail.mark_dynamic, mark_static or mark_unbacked")
_LOGS = ChangesNothing("dovetail.report and dovetail.explain tell what was compiled, and why")
_PLAN_CACHE = ChangesNothing("generated code alone is kept on disk, in DOVETAIL_CACHE_DIR")

TORCH_SETTINGS: Mapping[str, Sequence[tuple[Meaning, Mapping[str, object]]]] = {
    "dynamo": (
        (SetsOption("recompile_limit"), {"recompile_limit": 8}),
        (ChangesNothing("recompile_limit bounds each compiled function"), {
            "accumulated_recompile_limit": 256,
        }),
        (SetsArgument("dynamic"), {
            "automatic_dynamic_shapes": True, "assume_static_by_default": True,
            "dynamic_shapes": True,
        }),
        (SetsSwitch("disabled"), {"disable": False}),
        (SetsSwitch("suppress_errors"), {"suppress_errors": False}),
        (_MARKS, {"automatic_dynamic_shapes_mark_as": "dynamic"}),
        (SetsSwitch("captures_data"), {
            "capture_scalar_outputs": False, "capture_dynamic_output_shape_ops": False,
        }),
        (ChangesNothing(
            "numbers are compiled in until they change, and are inputs of the graph from then "
            "on"
        ), {
            "specialize_int": False, "specialize_float": False,
            "allow_unspec_int_on_nn_module": False,
        }),
        (_ALWAYS, {
            "force_parameter_static_shapes": True, "force_nn_module_property_static_shapes": True,
            "inline_inbuilt_nn_modules": True, "trace_numpy": True, "capture_func_transforms": True,
            "capture_autograd_function": True, "rewrite_assert_with_torch_assert": True,
            "only_allow_pt2_compliant_ops": False, "dont_skip_tracing": False,
            "trace_autograd_ops": False, "skip_fsdp_hooks": True,
        }),
        (ChangesNothing(
            "guards are native code; options={'guard_filter_fn': ...} drops those that are "
            "not needed"
        ), {
            "prefer_deferred_runtime_asserts_over_guards": False, "guard_nn_modules": True,
            "guard_nn_modules_using_dict_tags": True, "use_recursive_dict_tags_for_guards": False,
            "skip_nnmodule_hook_guards": True, "skip_fsdp_guards": True,
        }),
        (ChangesNothing("recurrent layers are captured in any case"), {"allow_rnn": False}),
        (ChangesNothing("graphs break inside of calls in any case"), {
            "nested_graph_breaks": False,
        }),
        (ChangesNothing("a module in DistributedDataParallel is compiled as one"), {
            "optimize_ddp": True, "optimize_ddp_lazy_compile": False,
        }),
        (Refused("ranks do not agree on what they compile"), {
            "enable_compiler_collectives": False,
        }),
        (Refused("call dovetail.compiled_autograd for the backward"), {"compiled_autograd": False}),
        (Refused('call dovetail.set_stance("fail_on_recompile")'), {"error_on_recompile": False}),
        (Refused("fullgraph=True raises an error where recompile_limit is reached"), {
            "fail_on_recompile_limit_hit": False,
        }),
        (_PLAN_CACHE, {
            "caching_precompile": False, "automatic_dynamic_local_pgo": True,
            "automatic_dynamic_remote_pgo": None,
        }),
        (ChangesNothing("the option constant_weights says it"), {"prepare_freezing": False}),
        (_LOGS, {
            "verbose": False, "report_guard_failures": True, "log_file_name": None,
            "log_compilation_metrics": True, "debug_dir_root": "", "cprofile": False,
            "repro_after": None, "repro_level": 2,
        }),
        (Refused("compare with dovetail.set_stance('force_eager')"), {"verify_correctness": False}),
    ),
    "functorch": (
        (SetsOption("activation_memory_budget"), {"activation_memory_budget": 1.0}),
        (ChangesNothing(
            "what is recomputed is chosen by min-cut; the option activation_memory_budget "
            "says how much"
        ), {
            "activation_memory_budget_runtime_estimator": "flops",
            "activation_memory_budget_solver": "dp", "aggressive_recomputation": False,
            "ban_recompute_used_far_apart": True, "ban_recompute_long_fusible_chains": True,
            "ban_recompute_materialized_backward": True, "ban_recompute_not_in_allowlist": True,
            "ban_recompute_reductions": True, "recompute_views": False,
        }),
        (_ALWAYS, {
            "treat_parameters_as_free_to_save": True, "functionalize_rng_ops": False,
            "graphsafe_rng_functionalization": True, "view_replay_for_aliased_outputs": True,
            "guess_tangent_strides_as_outputs": True, "cse": True, "static_weight_shapes": True,
        }),
        (Refused("what is saved stays on its device"), {"enable_activation_offloading": False}),
        (ChangesNothing("what a backward reads last is freed there; retain_graph=True keeps it"), {
            "donated_buffer": True,
        }),
        (_PLAN_CACHE, {
            "enable_autograd_cache": True, "enable_remote_autograd_cache": None,
            "autograd_cache_allow_custom_autograd_functions": False,
            "bundled_autograd_cache": False, "strict_autograd_cache": False,
        }),
        (Refused("a backward runs in its forward's mode"), {
            "backward_pass_autocast": "same_as_forward",
        }),
        (Refused("a backend of your own sees the graphs"), {"joint_custom_pass": None}),
        (_LOGS, {"debug_partitioner": False}),
    ),
    "compiler": (
        (_PLAN_CACHE, {"job_id": None, "pgo_extra_read_key": None, "pgo_extra_write_key": None}),
        (ChangesNothing("DOVETAIL_CACHE_DIR names a cache of its own"), {"cache_key_tag": ""}),
        (ChangesNothing(
            "code is found by its whole source: DOVETAIL_CACHE_DIR names a new cache"
        ), {
            "force_disable_caches": False,
        }),
        (Refused("each rank compiles, and finds others' code on disk"), {
            "compile_on_one_rank": False,
        }),
        (_MARKS, {
            "dynamic_sources": "", "dynamic_values": "", "static_sources": "",
            "unbacked_sources": "",
        }),
        (ChangesNothing("recording needs no collection"), {"force_cudagraph_gc": False}),
    ),
    "inductor": (
        (SetsOption("max_autotune"), {"max_autotune": False, "max_autotune_gemm": False}),
        (ChangesNothing("the option max_autotune measures what there is to choose from"), {
            "max_autotune_pointwise": False, "max_autotune_gemm_backends": "ATEN,TRITON,CPP",
            "max_autotune_conv_backends": "ATEN,TRITON",
            "max_autotune_gemm_search_space": "DEFAULT",
            "max_autotune_flex_search_space": "DEFAULT",
            "max_autotune_allow_flexible_layouts": False, "coordinate_descent_tuning": False,
            "coordinate_descent_check_all_directions": False, "coordinate_descent_search_radius": 1,
            "autotune_in_subproc": False, "autotune_multi_device": False,
            "autotune_fallback_to_aten": False, "search_autotune_cache": False,
            "benchmark_kernel": False, "benchmark_fusion": False, "benchmark_combo_kernel": False,
            "multi_kernel_hints": [], "triton.autotune_pointwise": True,
            "triton.autotune_cublasLt": True, "triton.multi_kernel": 0,
        }),
        (ChangesNothing("what is fused, split and padded is decided by bytes and launches"), {
            "epilogue_fusion": True, "epilogue_fusion_first": False, "prologue_fusion": True,
            "aggressive_fusion": False, "permute_fusion": False, "group_fusion": False,
            "batch_fusion": True, "b2b_gemm_pass": False, "combo_kernels": False,
            "max_fusion_size": 64, "realize_reads_threshold": 4, "realize_opcount_threshold": None,
            "realize_acc_reads_threshold": None, "split_reductions": True, "online_softmax": True,
            "loop_ordering_after_fusion": True, "pick_loop_orders": True,
            "force_pointwise_cat": False, "split_cat_fx_passes": True, "pattern_matcher": True,
            "reorder_for_locality": True, "reorder_for_peak_memory": True, "shape_padding": True,
            "force_shape_pad": False, "pad_outputs": False, "comprehensive_padding": True,
            "force_layout_optimization": False, "assume_32bit_indexing": False,
            "triton.persistent_reductions": True, "triton.cooperative_reductions": False,
            "triton.mix_order_reduction": True, "triton.prefer_nd_tiling": False,
            "triton.max_tiles": None, "triton.tile_reductions": False,
            "triton.use_block_ptr": False, "triton.enable_persistent_tma_matmul": False,
            "pre_grad_fusion_options": {}, "post_grad_fusion_options": {},
        }),
        (ChangesNothing("it is always so, where it gains"), {
            "inplace_buffers": True, "allow_buffer_reuse": True, "memory_planning": False,
            "memory_pool": "intermediates", "dce": False, "joint_graph_constant_folding": True,
            "layout_optimization": True, "keep_output_stride": True, "implicit_fallbacks": True,
            "triton.codegen_upcast_to_fp32": True,
        }),
        (ChangesNothing("inputs are checked by guards, and indices by kernels, in any case"), {
            "assume_aligned_inputs": False, "size_asserts": True, "alignment_asserts": True,
            "scalar_asserts": True, "assert_indirect_indexing": True, "debug_index_asserts": False,
        }),
        (ChangesNothing("the operator is one of a library, or of our own where that is faster"), {
            "conv_1x1_as_mm": False, "force_fuse_int_mm_with_mul": False, "use_mixed_mm": True,
            "mixed_mm_choice": "heuristic", "decompose_mem_bound_mm": False,
        }),
        (ChangesNothing("constant_weights folds them"), {
            "efficient_conv_bn_eval_fx_passes": False,
        }),
        (SetsOption("constant_weights"), {"freezing": False}),
        (ChangesNothing("the module keeps its parameters"), {"freezing_discard_parameters": False}),
        (SetsOption("fallback_random"), {"fallback_random": False}),
        (ChangesNothing("random numbers are eager's in any case"), {"align_random_eager": False}),
        (ChangesNothing(
            "within a kernel, float16 and bfloat16 stay in float32; what is stored is rounded "
            'as eager rounds it, and mode="lite" runs eager\'s kernels'
        ), {
            "emulate_precision_casts": False,
        }),
        (Refused(
            'generated kernels add in an order of their own; mode="lite" runs eager\'s kernels '
            "alone"
        ), {
            "numerics": "default", "eager_numerics.division_rounding": False,
            "eager_numerics.disable_ftz": False, "eager_numerics.use_pytorch_libdevice": False,
        }),
        (ChangesNothing("signs of zeros are eager's in any case"), {"strict_signed_zero": False}),
        (ChangesNothing("kernels keep to eager's functions"), {"use_fast_math": False}),
        (Refused("call torch.use_deterministic_algorithms(True)"), {"deterministic": False}),
        (Refused("kernels of other sizes may add in another order"), {"batch_invariant": False}),
        (SetsOption("fallback_by_default"), {"fallback_by_default": False}),
        (ChangesNothing("fallback_by_default decomposes nothing"), {"selective_decompose": False}),
        (SetsOption("cudagraphs"), {"triton.cudagraphs": False}),
        (ChangesNothing(
            "CUDA graphs share one pool, for several shapes; the option is cudagraphs"
        ), {
            "triton.cudagraph_trees": True, "triton.cudagraph_skip_dynamic_graphs": False,
            "triton.cudagraph_dynamic_shape_warn_limit": 8,
            "triton.cudagraph_dynamic_shape_rerecord_limit": None,
            "triton.cudagraph_support_input_mutation": True, "triton.cudagraph_capture_sizes": None,
            "triton.skip_cudagraph_warmup": False, "triton.force_cudagraphs_warmup": False,
            "triton.force_cudagraph_sync": False, "triton.slow_path_cudagraph_asserts": True,
            "triton.fast_path_cudagraph_asserts": False, "graph_partition": True,
        }),
        (Refused("dovetail.report tells why none was recorded"), {
            "triton.cudagraph_or_error": False,
        }),
        (Refused("dovetail records CUDA graphs in its own way alone"), {"cudagraph_policy": None}),
        (ChangesNothing(
            "a kernel's name tells its operators, and kernels that are alike share it"
        ), {
            "triton.unique_kernel_names": True, "triton.unique_user_kernel_names": False,
            "triton.descriptive_names": "original_aten", "cpp.descriptive_names": "original_aten",
        }),
        (ChangesNothing("generated code is kept in DOVETAIL_CACHE_DIR in any case"), {
            "triton.store_cubin": False, "fx_graph_cache": True, "fx_graph_remote_cache": None,
            "autotune_local_cache": True, "autotune_remote_cache": None,
            "bundle_triton_into_fx_graph_cache": True, "bundled_autotune_remote_cache": None,
            "global_cache_dir": None,
        }),
        (ChangesNothing("plans are run by native code in any case"), {
            "cpp_wrapper": False, "fx_wrapper": False,
        }),
        (ChangesNothing("torch.set_num_threads says how many there are"), {"cpp.threads": -1}),
        (ChangesNothing("C++ kernels are written for this machine's vectors and cores"), {
            "cpp.simdlen": None, "cpp.min_chunk_size": 512, "cpp.march": None,
            "cpp.vec_isa_ok": None, "cpp.weight_prepack": True,
            "cpp.enable_floating_point_contract_flag": "off",
            "cpp.enable_unsafe_math_opt_flag": False, "cpp.max_horizontal_fusion_size": 16,
        }),
        (Refused("kernels on the CPU are C++"), {"cpu_backend": "cpp"}),
        (Refused("kernels on a GPU are Triton's"), {"cuda_backend": "triton"}),
        (ChangesNothing("DOVETAIL_COMPILE_WORKERS says how many compilers run at a time"), {
            "compile_threads": 0, "worker_start_method": "subprocess",
            "compile_worker_mode": "process", "precompilation_timeout_seconds": 3600,
        }),
        (ChangesNothing(
            "DOVETAIL_DEBUG=DIR, or `with dovetail.logs.written_to(DIR):`, writes each "
            "stage's text"
        ), {
            "trace.enabled": False, "trace.debug_dir": None, "trace.debug_log": False,
            "trace.graph_diagram": False, "trace.draw_orig_fx_graph": False,
            "trace.output_code": True, "trace.fx_graph": True,
            "trace.log_autotuning_results": False, "trace.provenance_tracking_level": 0,
        }),
        (ChangesNothing("dovetail.report and dovetail.explain tell what was compiled"), {
            "debug": False, "debug_fusion": False, "comment_origin": False,
            "disable_progress": True, "verbose_progress": False, "developer_warnings": False,
            "profile_bandwidth": False, "profiler_mark_wrapper_call": False,
            "annotate_training": False,
        }),
        (Refused("compare with dovetail.set_stance('force_eager')"), {"nan_asserts": False}),
        (Refused("compiled graphs call no hooks within"), {"generate_intermediate_hooks": False}),
        (Refused("passes over Inductor's graphs have no place here; a backend of your own has"), {
            "pre_grad_custom_pass": None, "joint_custom_pre_pass": None,
            "joint_custom_post_pass": None, "post_grad_custom_pre_pass": None,
            "post_grad_custom_post_pass": None, "_pre_fusion_custom_pass": None,
            "_post_fusion_custom_pass": None, "custom_partitioner_fn": None,
            "inductor_choices_class": None,
        }),
        (ChangesNothing("collectives run as the program calls them"), {
            "reorder_for_compute_comm_overlap": False,
            "reorder_for_compute_comm_overlap_passes": [], "_micro_pipeline_tp": False,
            "_fuse_ddp_communication": False, "bucket_all_gathers_fx": "none",
            "bucket_reduce_scatters_fx": "none",
        }),
        (Refused("there is no ahead-of-time package"), {
            "aot_inductor.output_path": "", "aot_inductor.package": False,
        }),
        (Refused("dovetail's plans are run natively within Python"), {"use_aoti": False}),
    ),
}  # fmt: skip
