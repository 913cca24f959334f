"""Steps of optimizers that decide by data at every turn, where one graph of a step cannot be.

Python runs such a step as it is written here, in place of the function of `torch.optim`
(`table.py` says which), and what it computes lies in functions (`parts.py`) that are captured as
the user's are. The state that a step leaves is what PyTorch's own would.
"""
