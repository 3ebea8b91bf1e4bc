"""Collectives: what they are for, of how many elements, over which chips; and cuts of elements into parts."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction
from typing import NamedTuple

from tpusim.machines.tpu.slices.slice import Emitters
from tpusim.machines.tpu.slices.torus import Group


class CollectiveOp(NamedTuple):
    """An op of several chips: its meaning, what its bytes are, and how often a benchmark counts them: `sent` times all
    but a chip's own part.
    """

    about: str
    bytes_are: str
    sent: int


OPS: Mapping[str, CollectiveOp] = {
    "all_reduce": CollectiveOp("every chip gets the sum of all operands", "the operand of a chip", 2),
    "all_gather": CollectiveOp("every chip gets the parts of all, joined", "what a chip has in the end", 1),
    "reduce_scatter": CollectiveOp("every chip gets its part of the sum", "the operand of a chip", 1),
    "all_to_all": CollectiveOp("every chip gets its part of each operand", "the operand of a chip", 1),
    "permute": CollectiveOp("every chip gets the operand of its neighbour", "the operand of a chip", 1),
}
"""Ops by their names."""


@dataclass(frozen=True)
class Collective:
    """An op of the chips of a group: each has an operand, or result, of equal size.

    Attributes:
        op: a name of `OPS`.
        elements: elements of what `OPS` says bytes are of.
        element_bytes: bytes of each.
        group: the chips that take part.
        emitters: what code of the generation does.
        written: passes of a ring of which steps are made, where there are more; None: all.
    """

    op: str
    elements: int
    element_bytes: int
    group: Group
    emitters: Emitters
    written: int | None = None

    @property
    def bytes(self) -> int:
        """Bytes, in the sense of the op."""
        return self.elements * self.element_bytes

    def passes(self, elements: int, parts: int = 1) -> int:
        """Passes in which a stream goes over its elements, of which a hop carries one of some parts."""
        chunk = max(1, self.emitters.chunk_bytes // self.element_bytes)
        return min(self.emitters.most_passes, most(elements, parts * chunk))

    @property
    def moved(self) -> Fraction:
        """Bytes by which a benchmark divides the time: twice all but a chip's own part, of an all-reduce."""
        if self.op == "permute":
            return Fraction(self.bytes)
        return OPS[self.op].sent * self.bytes * Fraction(self.group.size - 1, self.group.size)


def cut(start: int, stop: int, parts: int, part: int) -> tuple[int, int]:
    """Return a part of a range, of several that are as equal as they can be."""
    many = stop - start
    return start + many * part // parts, start + many * (part + 1) // parts


def most(elements: int, parts: int) -> int:
    """Elements of the largest part."""
    return -(-elements // parts)
