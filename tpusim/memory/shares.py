"""Which bursts of a transfer its words are in: both are taken as spread evenly over it, in order."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Numbers = NDArray[np.int64]


def last_burst_of(words: int, bursts: int) -> Numbers:
    """The last burst that has a share in each word, int64[words]; there is at least one burst."""
    return np.asarray(-(-np.arange(1, words + 1, dtype=np.int64) * bursts // words) - 1)


def last_word_of(words: int, bursts: int) -> Numbers:
    """The last word that has a share in each burst, int64[bursts]."""
    return last_burst_of(bursts, words)
