"""Settings of Inductor, which are options of `compile` too."""

from __future__ import annotations

from dovetail.settings.meaning import ChangesNothing, Meaning, Refused, SetsOption, Setting

_ALWAYS = ChangesNothing("it is always so, where it gains")
_COST = ChangesNothing("what is fused, split and padded is decided by bytes and launches")
_TUNING = ChangesNothing("the option max_autotune measures what there is to choose from")
_ATEN = ChangesNothing("the operator is one of a library, or of our own where that is faster")
_GRAPHS = ChangesNothing("CUDA graphs share one pool, for several shapes; the option is cudagraphs")
_CACHE = ChangesNothing("generated code is kept in DOVETAIL_CACHE_DIR in any case")
_WORKERS = ChangesNothing("DOVETAIL_COMPILE_WORKERS says how many compilers run at a time")
_CPP = ChangesNothing("C++ kernels are written for this machine's vectors and cores")
_NAMES = ChangesNothing("a kernel's name tells its operators, and kernels that are alike share it")
_TELLS = ChangesNothing("dovetail.report and dovetail.explain tell what was compiled")
_TRACE = ChangesNothing(
    "DOVETAIL_DEBUG=DIR, or `with dovetail.logs.written_to(DIR):`, writes each stage's text"
)
_ASSERTS = ChangesNothing("inputs are checked by guards, and indices by kernels, in any case")
_RANKS = ChangesNothing("collectives run as the program calls them")
_PASS = Refused("passes over Inductor's graphs have no place here; a backend of your own has")
_SHIPPING = Refused("there is no ahead-of-time package")
_EAGER_NUMBERS = Refused(
    'generated kernels add in an order of their own; mode="lite" runs eager\'s kernels alone'
)

_ROWS: tuple[tuple[str, object, Meaning], ...] = (
    # What is chosen, and how it is tuned
    ("max_autotune", False, SetsOption("max_autotune")),
    ("max_autotune_gemm", False, SetsOption("max_autotune")),
    ("max_autotune_pointwise", False, _TUNING),
    ("max_autotune_gemm_backends", "ATEN,TRITON,CPP", _TUNING),
    ("max_autotune_conv_backends", "ATEN,TRITON", _TUNING),
    ("max_autotune_gemm_search_space", "DEFAULT", _TUNING),
    ("max_autotune_flex_search_space", "DEFAULT", _TUNING),
    ("max_autotune_allow_flexible_layouts", False, _TUNING),
    ("coordinate_descent_tuning", False, _TUNING),
    ("coordinate_descent_check_all_directions", False, _TUNING),
    ("coordinate_descent_search_radius", 1, _TUNING),
    ("autotune_in_subproc", False, _TUNING),
    ("autotune_multi_device", False, _TUNING),
    ("autotune_fallback_to_aten", False, _TUNING),
    ("search_autotune_cache", False, _TUNING),
    ("benchmark_kernel", False, _TUNING),
    ("benchmark_fusion", False, _TUNING),
    ("benchmark_combo_kernel", False, _TUNING),
    ("multi_kernel_hints", [], _TUNING),
    # Fusion, layouts, memory
    ("epilogue_fusion", True, _COST),
    ("epilogue_fusion_first", False, _COST),
    ("prologue_fusion", True, _COST),
    ("aggressive_fusion", False, _COST),
    ("permute_fusion", False, _COST),
    ("group_fusion", False, _COST),
    ("batch_fusion", True, _COST),
    ("b2b_gemm_pass", False, _COST),
    ("combo_kernels", False, _COST),
    ("max_fusion_size", 64, _COST),
    ("realize_reads_threshold", 4, _COST),
    ("realize_opcount_threshold", None, _COST),
    ("realize_acc_reads_threshold", None, _COST),
    ("split_reductions", True, _COST),
    ("online_softmax", True, _COST),
    ("loop_ordering_after_fusion", True, _COST),
    ("pick_loop_orders", True, _COST),
    ("force_pointwise_cat", False, _COST),
    ("split_cat_fx_passes", True, _COST),
    ("pattern_matcher", True, _COST),
    ("reorder_for_locality", True, _COST),
    ("reorder_for_peak_memory", True, _COST),
    ("inplace_buffers", True, _ALWAYS),
    ("allow_buffer_reuse", True, _ALWAYS),
    ("memory_planning", False, _ALWAYS),
    ("memory_pool", "intermediates", _ALWAYS),
    ("dce", False, _ALWAYS),
    ("joint_graph_constant_folding", True, _ALWAYS),
    ("shape_padding", True, _COST),
    ("force_shape_pad", False, _COST),
    ("pad_outputs", False, _COST),
    ("comprehensive_padding", True, _COST),
    ("layout_optimization", True, _ALWAYS),
    ("force_layout_optimization", False, _COST),
    ("keep_output_stride", True, _ALWAYS),
    ("assume_aligned_inputs", False, _ASSERTS),
    ("assume_32bit_indexing", False, _COST),
    ("conv_1x1_as_mm", False, _ATEN),
    ("force_fuse_int_mm_with_mul", False, _ATEN),
    ("use_mixed_mm", True, _ATEN),
    ("mixed_mm_choice", "heuristic", _ATEN),
    ("decompose_mem_bound_mm", False, _ATEN),
    ("implicit_fallbacks", True, _ALWAYS),
    ("efficient_conv_bn_eval_fx_passes", False, ChangesNothing("constant_weights folds them")),
    ("freezing", False, SetsOption("constant_weights")),
    ("freezing_discard_parameters", False, ChangesNothing("the module keeps its parameters")),
    # Numbers
    ("fallback_random", False, SetsOption("fallback_random")),
    ("align_random_eager", False, ChangesNothing("random numbers are eager's in any case")),
    (
        "emulate_precision_casts",
        False,
        ChangesNothing(
            "within a kernel, float16 and bfloat16 stay in float32; what is stored is rounded "
            'as eager rounds it, and mode="lite" runs eager\'s kernels'
        ),
    ),
    ("numerics", "default", _EAGER_NUMBERS),
    ("eager_numerics.division_rounding", False, _EAGER_NUMBERS),
    ("eager_numerics.disable_ftz", False, _EAGER_NUMBERS),
    ("eager_numerics.use_pytorch_libdevice", False, _EAGER_NUMBERS),
    ("strict_signed_zero", False, ChangesNothing("signs of zeros are eager's in any case")),
    ("use_fast_math", False, ChangesNothing("kernels keep to eager's functions")),
    ("deterministic", False, Refused("call torch.use_deterministic_algorithms(True)")),
    ("batch_invariant", False, Refused("kernels of other sizes may add in another order")),
    ("fallback_by_default", False, SetsOption("fallback_by_default")),
    ("selective_decompose", False, ChangesNothing("fallback_by_default decomposes nothing")),
    # CUDA graphs and Triton
    ("triton.cudagraphs", False, SetsOption("cudagraphs")),
    ("triton.cudagraph_trees", True, _GRAPHS),
    ("triton.cudagraph_skip_dynamic_graphs", False, _GRAPHS),
    ("triton.cudagraph_dynamic_shape_warn_limit", 8, _GRAPHS),
    ("triton.cudagraph_dynamic_shape_rerecord_limit", None, _GRAPHS),
    ("triton.cudagraph_support_input_mutation", True, _GRAPHS),
    ("triton.cudagraph_capture_sizes", None, _GRAPHS),
    ("triton.skip_cudagraph_warmup", False, _GRAPHS),
    ("triton.force_cudagraphs_warmup", False, _GRAPHS),
    ("triton.force_cudagraph_sync", False, _GRAPHS),
    ("triton.slow_path_cudagraph_asserts", True, _GRAPHS),
    ("triton.fast_path_cudagraph_asserts", False, _GRAPHS),
    ("triton.cudagraph_or_error", False, Refused("dovetail.report tells why none was recorded")),
    ("cudagraph_policy", None, Refused("dovetail records CUDA graphs in its own way alone")),
    ("graph_partition", True, _GRAPHS),
    ("triton.unique_kernel_names", True, _NAMES),
    ("triton.unique_user_kernel_names", False, _NAMES),
    ("triton.descriptive_names", "original_aten", _NAMES),
    ("triton.autotune_pointwise", True, _TUNING),
    ("triton.autotune_cublasLt", True, _TUNING),
    ("triton.multi_kernel", 0, _TUNING),
    ("triton.persistent_reductions", True, _COST),
    ("triton.cooperative_reductions", False, _COST),
    ("triton.mix_order_reduction", True, _COST),
    ("triton.prefer_nd_tiling", False, _COST),
    ("triton.max_tiles", None, _COST),
    ("triton.tile_reductions", False, _COST),
    ("triton.use_block_ptr", False, _COST),
    ("triton.enable_persistent_tma_matmul", False, _COST),
    ("triton.codegen_upcast_to_fp32", True, _ALWAYS),
    ("triton.store_cubin", False, _CACHE),
    # C++
    ("cpp_wrapper", False, ChangesNothing("plans are run by native code in any case")),
    ("fx_wrapper", False, ChangesNothing("plans are run by native code in any case")),
    ("cpp.threads", -1, ChangesNothing("torch.set_num_threads says how many there are")),
    ("cpp.simdlen", None, _CPP),
    ("cpp.min_chunk_size", 512, _CPP),
    ("cpp.march", None, _CPP),
    ("cpp.vec_isa_ok", None, _CPP),
    ("cpp.weight_prepack", True, _CPP),
    ("cpp.enable_floating_point_contract_flag", "off", _CPP),
    ("cpp.enable_unsafe_math_opt_flag", False, _CPP),
    ("cpp.max_horizontal_fusion_size", 16, _CPP),
    ("cpp.descriptive_names", "original_aten", _NAMES),
    ("cpu_backend", "cpp", Refused("kernels on the CPU are C++")),
    ("cuda_backend", "triton", Refused("kernels on a GPU are Triton's")),
    # Caches and workers
    ("fx_graph_cache", True, _CACHE),
    ("fx_graph_remote_cache", None, _CACHE),
    ("autotune_local_cache", True, _CACHE),
    ("autotune_remote_cache", None, _CACHE),
    ("bundle_triton_into_fx_graph_cache", True, _CACHE),
    ("bundled_autotune_remote_cache", None, _CACHE),
    ("global_cache_dir", None, _CACHE),
    ("compile_threads", 0, _WORKERS),
    ("worker_start_method", "subprocess", _WORKERS),
    ("compile_worker_mode", "process", _WORKERS),
    ("precompilation_timeout_seconds", 3600, _WORKERS),
    # What is told and checked
    ("trace.enabled", False, _TRACE),
    ("trace.debug_dir", None, _TRACE),
    ("trace.debug_log", False, _TRACE),
    ("trace.graph_diagram", False, _TRACE),
    ("trace.draw_orig_fx_graph", False, _TRACE),
    ("trace.output_code", True, _TRACE),
    ("trace.fx_graph", True, _TRACE),
    ("trace.log_autotuning_results", False, _TRACE),
    ("trace.provenance_tracking_level", 0, _TRACE),
    ("debug", False, _TELLS),
    ("debug_fusion", False, _TELLS),
    ("comment_origin", False, _TELLS),
    ("disable_progress", True, _TELLS),
    ("verbose_progress", False, _TELLS),
    ("developer_warnings", False, _TELLS),
    ("profile_bandwidth", False, _TELLS),
    ("profiler_mark_wrapper_call", False, _TELLS),
    ("annotate_training", False, _TELLS),
    ("size_asserts", True, _ASSERTS),
    ("alignment_asserts", True, _ASSERTS),
    ("scalar_asserts", True, _ASSERTS),
    ("assert_indirect_indexing", True, _ASSERTS),
    ("debug_index_asserts", False, _ASSERTS),
    ("nan_asserts", False, Refused("compare with dovetail.set_stance('force_eager')")),
    ("generate_intermediate_hooks", False, Refused("compiled graphs call no hooks within")),
    # Passes and collectives
    ("pre_grad_custom_pass", None, _PASS),
    ("joint_custom_pre_pass", None, _PASS),
    ("joint_custom_post_pass", None, _PASS),
    ("post_grad_custom_pre_pass", None, _PASS),
    ("post_grad_custom_post_pass", None, _PASS),
    ("_pre_fusion_custom_pass", None, _PASS),
    ("_post_fusion_custom_pass", None, _PASS),
    ("pre_grad_fusion_options", {}, _COST),
    ("post_grad_fusion_options", {}, _COST),
    ("custom_partitioner_fn", None, _PASS),
    ("inductor_choices_class", None, _PASS),
    ("reorder_for_compute_comm_overlap", False, _RANKS),
    ("reorder_for_compute_comm_overlap_passes", [], _RANKS),
    ("_micro_pipeline_tp", False, _RANKS),
    ("_fuse_ddp_communication", False, _RANKS),
    ("bucket_all_gathers_fx", "none", _RANKS),
    ("bucket_reduce_scatters_fx", "none", _RANKS),
    ("aot_inductor.output_path", "", _SHIPPING),
    ("aot_inductor.package", False, _SHIPPING),
    ("use_aoti", False, Refused("dovetail's plans are run natively within Python")),
)

CODE_GENERATION: tuple[Setting, ...] = tuple(
    Setting(name, "inductor", default, meaning) for name, default, meaning in _ROWS
)
