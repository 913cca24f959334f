"""Branches on the data of tensors: which are left to the graph to check, and what may catch."""
