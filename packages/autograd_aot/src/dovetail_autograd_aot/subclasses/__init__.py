"""Tensor subclasses that wrap tensors, taken apart at the boundary of a compiled graph."""
