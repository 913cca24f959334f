"""Triton code generation for GPUs: fused kernels to `@triton.jit` source text."""
