"""Ahead-of-time joint forward and backward tracing."""
