"""Opcode handlers, one file per family; `table.py` puts them together."""
