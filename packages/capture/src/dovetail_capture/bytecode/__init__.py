"""Bytecode that is written: the assembler, continuations, and the unwinding of blocks."""
