"""Matrix products by generated kernels, by rule or as measured: wired in `pipeline.py` alone."""
