"""Bytecode capture of PyTorch programs into FX graphs."""
