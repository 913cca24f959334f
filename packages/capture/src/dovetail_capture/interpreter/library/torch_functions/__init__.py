"""Functions of torch, and methods and attributes of tensors."""
