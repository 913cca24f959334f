"""What a frame is given: from objects and their sources to values and guards."""
