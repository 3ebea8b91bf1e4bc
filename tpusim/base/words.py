"""Numbers in sentences, and text from elsewhere made safe to show."""

from __future__ import annotations

import re
from collections.abc import Container, Mapping, Sequence
from itertools import chain, count

_UNSEEN = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]")
"""Characters that a terminal obeys, except ends of lines and tabs; and those that change the direction of text."""


def counted(count: int, what: str) -> str:
    """A number of things, such as "1 pass" or "2,000 fills"; the plural of `what` takes an s."""
    return f"{count:,} {what}{'' if count == 1 else 's'}"


def free_name(wanted: str, taken: Container[str]) -> str:
    """The name that is wanted, with a number behind it where it is taken."""
    return next(each for each in chain([wanted], (f"{wanted}_{at}" for at in count(2))) if each not in taken)


def few(texts: Sequence[str], most: int, between: str = ", ", more: str = ", ...") -> str:
    """The first of some texts, and `more` behind them if any are left out; {} in `more` becomes their number."""
    left = len(texts) - most
    return between.join(texts[:most]) + (more.format(f"{left:,}") if left > 0 else "")


_MOST_NAMED = 3
"""Most settings that stand beside a name."""
_LONGEST_SETTING = 48


def with_settings(name: str, settings: Mapping[str, str]) -> str:
    """The name of a thing with what was set of it, by path: "tpu_v2 with array.size=64"; of many the first few, and how
    many more.
    """
    if not settings:
        return name
    each = [f"{path}={value}" for path, value in settings.items()]
    told = [text if len(text) <= _LONGEST_SETTING else f"{text[: _LONGEST_SETTING - 3]}..." for text in each]
    return f"{name} with {few(told, _MOST_NAMED, more=' and {} more set')}"


def visible(text: str) -> str:
    """`text` with characters that a terminal would obey written out: an escape becomes the four characters "\\x1b"."""
    return _UNSEEN.sub(lambda found: ascii(found[0])[1:-1], text)
