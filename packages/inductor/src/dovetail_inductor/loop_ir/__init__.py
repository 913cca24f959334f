"""The loop IR: affine indices, scalar expressions, loop nests, and handlers over them."""
