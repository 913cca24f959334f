"""Functions and classes of the standard library."""
