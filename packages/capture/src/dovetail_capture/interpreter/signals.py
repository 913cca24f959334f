"""How a capture ends early: at a graph break, or before what cannot be rebuilt."""

from __future__ import annotations


class GraphBreakSignal(Exception):
    """Capture cannot go on past the construct at hand; the frame is restarted to end before it.

    `where` are the interpreted frames that it arose in, outermost first: (file, line, function).
    `raises` is what eager mode raises there, if it does, and the program does not handle it.
    """

    def __init__(self, reason: str, hint: str = "", raises: Exception | None = None) -> None:
        super().__init__(reason)
        self.reason = reason
        self.raises = raises
        self.hint = hint or "move the construct out of the compiled function"
        self.where: list[tuple[str, int, str]] | None = None


class CannotRebuild(Exception):
    """A value that is alive at the end of the captured stretch cannot be written as a recipe.

    `born` is the step of the top frame that made it, or 0: the capture can end before that step.
    """

    def __init__(self, text: str, born: int = 0) -> None:
        super().__init__(text)
        self.born = born


class MustEndBefore(CannotRebuild):
    """What step `born` did cannot be in one graph with what follows; says what that is."""


class InnerTensor(CannotRebuild):
    """A tensor of the inside of a transformed function, or of one of autograd, left it another way
    than as a result."""

    def __init__(self) -> None:
        super().__init__("a tensor of the inside of a transformed function")
