"""Python's protocols over values: attributes, calls, operators, iteration, dictionaries."""
