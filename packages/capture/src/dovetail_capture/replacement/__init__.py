"""Replacement code: from a captured frame to the bytecode that runs in its place."""
