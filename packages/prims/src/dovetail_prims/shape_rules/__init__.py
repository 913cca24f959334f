"""Shape rules: from the metadata of an op's arguments to fake outputs, without running it."""
