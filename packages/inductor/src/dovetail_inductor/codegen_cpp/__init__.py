"""C++ code generation: fused kernels as loops over our own SIMD types."""
