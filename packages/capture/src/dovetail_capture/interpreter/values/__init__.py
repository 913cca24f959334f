"""The values that the interpreter computes with, one file per family of Python types."""
