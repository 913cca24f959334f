"""Calls of compiled graphs: inference, training, and autograd functions around them."""
