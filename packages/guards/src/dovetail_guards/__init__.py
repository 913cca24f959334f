"""Symbolic sizes, value sources and native guards."""
