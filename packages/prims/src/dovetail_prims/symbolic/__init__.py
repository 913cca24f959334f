"""Calls that PyTorch computes with the numbers of their sizes, by operators that take symbols."""
