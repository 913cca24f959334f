"""What the interpreter knows of functions it cannot or should not interpret: C functions of
Python and its standard library, methods of built-in types, torch."""
