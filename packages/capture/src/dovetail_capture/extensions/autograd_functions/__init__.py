"""`torch.autograd.Function`."""
