"""One attempt at a capture: the interpreter over a frame, and the captured frame it leaves."""
