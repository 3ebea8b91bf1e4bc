"""Numbers in sentences."""

from __future__ import annotations


def counted(count: int, what: str) -> str:
    """ "1 pass", "2,000 fills": so many of `what`, whose plural takes an s."""
    return f"{count:,} {what}{'' if count == 1 else 's'}"
