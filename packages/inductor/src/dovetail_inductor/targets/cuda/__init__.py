"""GPUs as a target."""
