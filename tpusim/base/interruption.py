"""Ctrl-C, even if Python reports it as another error, and what counts as Ctrl-C."""

from __future__ import annotations

import signal
import threading
from types import FrameType

ENDING = tuple(getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGHUP") if hasattr(signal, name))
"""Signals that end a command as Ctrl-C does: what `kill` and batch systems send, and a terminal that is closed."""


def heard() -> None:
    """Let all signals of ENDING do what Ctrl-C does, but for those that somebody ignores or answers (`nohup`)."""
    for each in ENDING:
        if signal.getsignal(each) is signal.SIG_DFL:
            signal.signal(each, signal.default_int_handler)


class HeldInterrupt:
    """Ctrl-C, kept back where others would swallow it: LLVM calls Python, and goes on whatever that raises."""

    def __init__(self) -> None:
        self._asked, self._held = False, set[signal.Signals]()

    def hold(self) -> None:
        """Remember Ctrl-C from now on, on the main thread, on which alone it is heard."""
        if threading.current_thread() is threading.main_thread():
            for each in ENDING:
                if signal.getsignal(each) is signal.default_int_handler:
                    signal.signal(each, self._remember)
                    self._held.add(each)

    def let_go(self) -> None:
        """Hear Ctrl-C as before. Raises KeyboardInterrupt if there was one meanwhile."""
        if threading.current_thread() is threading.main_thread():
            for each in self._held:
                signal.signal(each, signal.default_int_handler)
            self._held.clear()
            asked, self._asked = self._asked, False
            if asked:
                raise KeyboardInterrupt

    def _remember(self, number: int, frame: FrameType | None) -> None:
        self._asked = True


def interrupted(error: BaseException | None) -> bool:
    """Whether an error is Ctrl-C, or was caused by it: Python 3.11 wraps what is raised while a class is made."""
    return error is not None and (isinstance(error, KeyboardInterrupt) or interrupted(error.__cause__))
