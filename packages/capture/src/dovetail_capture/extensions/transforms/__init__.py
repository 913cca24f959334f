"""`torch.vmap` and the transforms of `torch.func`."""
