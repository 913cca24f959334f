"""The compiled form of a module, and of its state dict."""
