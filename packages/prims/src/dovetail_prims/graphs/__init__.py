"""What graphs hold besides calls of operators, and what stages ask of them."""
