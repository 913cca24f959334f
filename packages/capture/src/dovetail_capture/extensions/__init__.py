"""Parts of capture that its core does not import, and that could be packages of their own.

Each gives an `Extension` (`interpreter/machine/machine.py`): its entries in the tables of
library functions. `installed.py` lists those that there are.
"""
