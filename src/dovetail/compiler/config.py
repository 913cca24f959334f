"""The settings of `torch.compiler.config`. (Those of the compiler are in `dovetail.config`.)"""
