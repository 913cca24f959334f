"""The backends that `backend=` names: which there are (`registry`), and a module for each kind."""
