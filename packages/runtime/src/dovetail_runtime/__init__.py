"""Plans, native executor, artifact cache and compile pool."""
