"""The one-pass model of a channel, from now up to a cycle."""

from __future__ import annotations

from tpusim.memory.dram.events import step
from tpusim.memory.dram.kernel import kernel
from tpusim.memory.dram.row_hits import room, row_hits
from tpusim.memory.dram.rules import Numbers
from tpusim.memory.dram.state import NEXT, State


@kernel
def advance(
    rules: Numbers, state: State, requests: Numbers, c: int, until: int, reads: bool = False, writes: bool = False
) -> bool:
    """Do all that a channel does before cycle `until`; or less, up to where there is room for `reads`, or `writes`.

    Returns whether there is.
    """
    m, groups, banks, seen = state.channels[c], state.groups[c], state.banks[c], state.seen[c]
    while m[NEXT] < until:
        if not row_hits(rules, m, groups, banks, seen, requests, until, reads, writes):
            step(rules, m, groups, banks, seen, requests)
        if room(rules, m, reads, writes):
            return True
    return False
