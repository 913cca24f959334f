"""Rewrites of functional FX graphs before lowering: wired in `pipeline.py` alone."""
