"""What a Program says of banks: SRAMs that hold the ifmap alone, and that array rows reach through a crossbar.

Word addresses count through all banks: address a is line a // banks of bank a % banks.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from tpusim.machines.tpu.program.addresses import Addresses, Counters, Feed, LaneGroup, walked

Groups: TypeAlias = tuple[LaneGroup, ...]
Marks: TypeAlias = NDArray[np.bool_]

_NOTHING = np.iinfo(np.int64).min
"""What padding asks for: no address, not even one relative to another."""


@dataclass(frozen=True)
class BankFeed(Feed):
    """What a pass reads from the banks: the lanes of a group are array rows, all of which want the same word."""

    @cached_property
    def accesses(self) -> int:
        """The words read; one that several rows want at once is read once."""
        return _accesses(relative(self.groups))


def relative(groups: Groups) -> Groups:
    """The same from another word on, so that passes that read alike elsewhere are seen to be alike."""
    patterns = [group.pattern for group in groups if isinstance(group.pattern, Counters)]
    if not patterns or len(patterns) < len(groups):
        return groups
    first = patterns[0].base
    return tuple(
        LaneGroup(lane, lanes, pattern._replace(base=pattern.base - first))
        for (lane, lanes, _), pattern in zip(groups, patterns, strict=True)
    )


def asked(groups: Groups) -> tuple[Addresses, Marks]:
    """The addresses [word, group] asked for at once, in ascending order, and which of them are no repetitions; of one
    group at least.
    """
    table = np.sort([np.where(*walked(group.pattern), _NOTHING) for group in groups], axis=0).T
    return table, np.diff(table, axis=1, prepend=_NOTHING) != 0


@lru_cache(maxsize=1024)
def _accesses(groups: Groups) -> int:
    return int(np.count_nonzero(asked(groups)[1])) if groups else 0
