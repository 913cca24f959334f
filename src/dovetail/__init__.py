"""Dovetail: a substitute for torch.compile."""
