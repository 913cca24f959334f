"""The dialects of the op language: their operators, `verify`, and what PRIMS means."""
