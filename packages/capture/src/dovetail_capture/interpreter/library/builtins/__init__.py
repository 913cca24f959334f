"""Built-in functions and types, and classes that the program makes."""
