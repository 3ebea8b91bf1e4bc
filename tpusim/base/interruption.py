"""Ctrl-C, even if Python reports it as another error."""

from __future__ import annotations


def interrupted(error: BaseException | None) -> bool:
    """Whether an error is Ctrl-C, or was caused by it: Python 3.11 wraps what is raised while a class is made."""
    return error is not None and (isinstance(error, KeyboardInterrupt) or interrupted(error.__cause__))
