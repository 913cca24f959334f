"""Lowering: from an ATen FX graph to loop nests and extern calls."""
