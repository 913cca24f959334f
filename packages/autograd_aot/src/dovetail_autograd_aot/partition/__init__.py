"""Splits a joint graph into forward and backward: what is saved and what is recomputed."""
