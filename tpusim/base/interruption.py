"""Ctrl-C, even if Python reports it as another error, and what counts as Ctrl-C."""

from __future__ import annotations

import signal

ENDING = tuple(getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGHUP") if hasattr(signal, name))
"""Signals that end a command as Ctrl-C does: what `kill` and batch systems send, and a terminal that is closed."""


def heard() -> None:
    """Let all signals of ENDING do what Ctrl-C does, but for those that somebody ignores or answers (`nohup`)."""
    for each in ENDING:
        if signal.getsignal(each) is signal.SIG_DFL:
            signal.signal(each, signal.default_int_handler)


def interrupted(error: BaseException | None) -> bool:
    """Whether an error is Ctrl-C, or was caused by it: Python 3.11 wraps what is raised while a class is made."""
    return error is not None and (isinstance(error, KeyboardInterrupt) or interrupted(error.__cause__))
