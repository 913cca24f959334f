"""User outputs: what each is made of, and how a call makes it of a graph's results."""
