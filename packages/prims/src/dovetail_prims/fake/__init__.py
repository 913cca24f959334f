"""Fake tensors: made of real ones, under a mode, by operators without a shape rule."""
