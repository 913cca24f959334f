"""The bytecode interpreter: from a frame to a graph, guards, effects and how the frame ends."""

from dovetail_capture.interpreter.capture import capture_frame

__all__ = ["capture_frame"]
