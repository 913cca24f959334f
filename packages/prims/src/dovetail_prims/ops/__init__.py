"""The operators: one card each, which says everything about it that any table needs."""
