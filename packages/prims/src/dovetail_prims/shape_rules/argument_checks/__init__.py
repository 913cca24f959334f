"""What eager insists on of arguments, beyond what a shape rule looks at: see `requirement`."""
