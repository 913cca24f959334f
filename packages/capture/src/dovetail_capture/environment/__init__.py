"""State of the process around a call: callers, modes, signals, settings of torch and of Python."""
