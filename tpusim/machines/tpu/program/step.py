"""What a Program consists of. Every step says of itself what others need to know; nobody asks for its class but the
interpreters, which have a handler for each.

A *word address* counts words within one lane's vector memory; every lane of a step uses the same addresses, skewed
in time by the machine. `after` holds the indices of the steps that must be done before a step may begin; besides, each
unit takes its own steps in list order.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import ClassVar, NamedTuple, Self


class Use(NamedTuple):
    """What a step takes of the machine: bytes from and to HBM, words through the ports of all lanes, words that each
    lane streams, PEs in use times words that pass them, and bytes from and to the scratch memory.
    """

    hbm_read_bytes: int = 0
    hbm_write_bytes: int = 0
    port_reads: int = 0
    port_writes: int = 0
    words_streamed: int = 0
    pe_words: int = 0
    scratch_read_bytes: int = 0
    scratch_write_bytes: int = 0


class Shift(NamedTuple):
    """What a step is in a Program of several layers: one of `layer`, so many `steps` further on."""

    layer: str
    steps: int


@dataclass(frozen=True, slots=True)
class Step:
    """Something one unit does. A new kind is a class here and a handler in each interpreter."""

    cause: ClassVar[str]
    """What the array is said to be while it waits for such a step: the name of a stall cause."""
    queue: ClassVar[str]
    """The unit that takes such steps, in their order."""

    after: tuple[int, ...]

    @property
    def label(self) -> str:
        """What a trace or a message calls it."""
        return type(self).__name__.lower()

    @property
    def facts(self) -> Mapping[str, int | str]:
        """What a trace tells of it, by name."""
        return {}

    @property
    def use(self) -> Use:
        """What it takes of the machine."""
        return Use()

    @property
    def words_used(self) -> Iterator[range]:
        """The words of lanes that it reads or writes."""
        yield from self.words_read
        yield from self.words_written

    @property
    def words_read(self) -> Iterator[range]:
        """The words of lanes that it reads, and perhaps some among them that it does not."""
        yield from ()

    @property
    def words_written(self) -> Iterator[range]:
        """The same of those that it writes."""
        yield from ()

    @property
    def adds_on(self) -> bool:
        """Whether it works on the words that it writes, instead of writing them anew."""
        return False

    def shifted(self, by: Shift) -> Self:
        """The same step of a Program of several layers."""
        return replace(self, after=tuple(each + by.steps for each in self.after))

    def renumbered(self, places: Mapping[int, int]) -> Self:
        """The same where steps have other numbers: `places` by those that they had."""
        return replace(self, after=tuple(sorted(places[each] for each in self.after)))
