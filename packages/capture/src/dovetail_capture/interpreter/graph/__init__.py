"""The graph under construction: nodes, their fake tensors, and what is known of their data."""
