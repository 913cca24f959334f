"""The frames of compiled functions: their versions, and how a call finds, makes and runs one."""
