"""NumPy arrays and functions as torch code."""
