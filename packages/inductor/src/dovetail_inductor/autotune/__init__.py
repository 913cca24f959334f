"""Choices made by measuring: what is measured, how, and what is kept of it."""
