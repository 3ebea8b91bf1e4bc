"""The one-pass model of a channel, from now up to a cycle."""

from __future__ import annotations

from tpusim.memory.dram.events import step
from tpusim.memory.dram.kernel import inlined, kernel
from tpusim.memory.dram.row_hits import enough, row_hits
from tpusim.memory.dram.rules import Numbers
from tpusim.memory.dram.state import LEFT_BELOW, NEXT, READS_BELOW, UNTIL, WRITES_BELOW, State


@inlined
def advance(
    rules: Numbers, state: State, requests: Numbers, c: int, until: int, reads: int, writes: int, left: int
) -> bool:
    """Do all that a channel does before cycle `until`; or less, up to where fewer than `reads` wait, fewer than
    `writes`, or fewer requests than `left` are left at all.

    Returns whether it came to that.
    """
    m = state.channels[c]
    m[UNTIL], m[READS_BELOW], m[WRITES_BELOW], m[LEFT_BELOW] = until, reads, writes, left
    return _go_on(rules, state, requests, c)


@kernel
def _go_on(rules: Numbers, state: State, requests: Numbers, c: int) -> bool:
    """The same. What is asked stands in the channel: of constants the compiler would make a loop of its own each."""
    m, groups, banks, seen = state.channels[c], state.groups[c], state.banks[c], state.seen[c]
    while not enough(m):
        if m[NEXT] >= m[UNTIL]:
            return False
        if not row_hits(rules, m, groups, banks, seen, requests):
            step(rules, m, groups, banks, seen, requests)
    return True
