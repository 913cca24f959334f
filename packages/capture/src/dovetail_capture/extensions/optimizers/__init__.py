"""`torch.optim`: steps as one graph, or in parts.

Steps that decide by data at every turn cannot be one graph. Python runs such a step as it is
written here, in place of the function of `torch.optim` (`driven_steps.py` says which), and what it
computes lies in functions (`step_parts.py`) that are captured as the user's are. The state that a
step leaves is what PyTorch's own would.
"""
