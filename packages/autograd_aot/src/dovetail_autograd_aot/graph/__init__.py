"""What graphs are made of: nodes, what is known of operators, symbolic sizes."""
