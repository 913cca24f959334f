"""Launches of the user's Triton kernels as nodes of the graph."""
