"""Numbers in sentences, and text from elsewhere made safe to show."""

from __future__ import annotations

import re

_UNSEEN = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]")
"""Characters that a terminal obeys, except ends of lines and tabs; and those that change the direction of text."""


def counted(count: int, what: str) -> str:
    """A number of things, such as "1 pass" or "2,000 fills"; the plural of `what` takes an s."""
    return f"{count:,} {what}{'' if count == 1 else 's'}"


def visible(text: str) -> str:
    """`text` with characters that a terminal would obey written out: an escape becomes the four characters "\\x1b"."""
    return _UNSEEN.sub(lambda found: ascii(found[0])[1:-1], text)
