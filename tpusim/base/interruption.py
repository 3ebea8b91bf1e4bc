"""Ctrl-C, also where Python tells of it as something else."""

from __future__ import annotations


def interrupted(error: BaseException | None) -> bool:
    """Whether an error is Ctrl-C, or came of it: Python 3.11 wraps what is raised while a class is made."""
    return error is not None and (isinstance(error, KeyboardInterrupt) or interrupted(error.__cause__))
