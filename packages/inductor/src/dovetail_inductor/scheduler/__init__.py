"""Scheduling: which loop nests share a kernel, in what order, in what memory."""
