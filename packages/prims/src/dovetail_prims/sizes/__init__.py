"""Symbolic sizes and numbers in graphs: their nodes, checks and symbols."""
