"""Loop IR, fusion, Triton and C++ code generation."""
