"""From the values at a capture's end to recipes, by which replacement code rebuilds them."""
