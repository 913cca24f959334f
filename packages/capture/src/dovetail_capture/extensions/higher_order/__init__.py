"""`torch.cond`, `while_loop`, `scan` and their like: nodes that call captured functions."""
