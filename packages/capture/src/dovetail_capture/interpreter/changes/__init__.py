"""What a frame changes and reads of what outlives it."""
