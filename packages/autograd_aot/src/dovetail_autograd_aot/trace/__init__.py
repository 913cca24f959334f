"""The tracer: runs a program on fake tensors, functionalises it and records it as a graph."""
