"""From a Program whose passes count their addresses to one whose passes read them: the same words, through pointers."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from typing import Generic, NamedTuple, TypeAlias, TypeVar

import numpy as np
from numpy.typing import NDArray

from tpusim.base.errors import CapacityError
from tpusim.machines.tpu.description import Hardware
from tpusim.machines.tpu.program.addresses import (
    AddressPattern,
    Counter,
    Counters,
    Feed,
    Pointers,
    PointerTable,
    Table,
    encoded,
    pointer_bytes,
    pointers_a_word,
    walked,
)
from tpusim.machines.tpu.program.program import Buffer, Constant, Program
from tpusim.machines.tpu.program.steps import Step, Stream
from tpusim.machines.tpu.program.tensor import Along, Part, Tensor
from tpusim.machines.tpu.program.transfers import Fill, Inbound
from tpusim.memory.layout import whole_bursts
from tpusim.network.ops.fused import BIAS

NAME = "pointers"
"""Of the tensor, and of its buffers."""

Walk: TypeAlias = Counters | Table
"""Where a pattern goes, counters from word 0 on."""

Key: TypeAlias = tuple[int, tuple[Walk, ...]]
"""What tells two tables of pointers apart: the words that share pointers, and where each lane group goes."""


Wanted = TypeVar("Wanted", bound=Hashable)


@dataclass(frozen=True, slots=True)
class Load(Generic[Wanted]):
    """`key` goes into `buffer` for `stage` and after; what was there was last used in stage `freed` (or -1)."""

    key: Wanted
    buffer: int
    stage: int
    freed: int


def assign_buffers(wanted: Sequence[Wanted], buffers: int) -> tuple[list[Load[Wanted]], list[int]]:
    """Walk over the key each stage wants; reuse a buffer that holds it, else replace the oldest.

    Returns the loads in order, and for each stage the index of the load it uses.
    """
    holds: list[int] = []
    last_used: dict[int, int] = {}
    loads: list[Load[Wanted]] = []
    uses: list[int] = []
    where: dict[Wanted, int] = {}
    for stage, key in enumerate(wanted):
        if key not in where:
            freed = -1
            if len(holds) == buffers:
                oldest = holds.pop(0)
                freed = last_used[oldest]
                del where[loads[oldest].key]
                buffer = loads[oldest].buffer
            else:
                buffer = len(holds)
            where[key] = len(loads)
            holds.append(len(loads))
            loads.append(Load(key, buffer, stage, freed))
        uses.append(where[key])
        last_used[where[key]] = stage
    return loads, uses


@dataclass(frozen=True)
class Pointed:
    """A Program with pointers, and what they take.

    Attributes:
        tables: different ones, each for passes that read alike.
        pointers: in all tables together.
        words: of the vector memory of lane 0.
        fills: initialisations; of a table more than one, where not all of them fit.
        hbm_bytes: moved by all fills.
    """

    program: Program
    tables: int
    pointers: int
    words: int
    fills: int
    hbm_bytes: int


class _Content(NamedTuple):
    """A table's pointers [pixel, lane group]; the first of them in the tensor."""

    numbers: NDArray[np.int64]
    first: int


def with_pointers(program: Program, hardware: Hardware) -> Pointed:
    """The same passes over the same words, every address of theirs read from the vector memory.

    Passes that read alike, from whatever base, share a table. What the vector memory has room for stays there; of
    more tables than that, the oldest gives way.

    Raises:
        CapacityError: when there is no room for a table, a word holds no pointer, or a lane has more words than can be
            told apart.
    """
    return _Pointing(program, hardware).pointed()


class _Pointing:
    def __init__(self, program: Program, hardware: Hardware) -> None:
        self.program, self.hardware = program, hardware
        self.per_word, self.bytes = pointers_a_word(hardware), pointer_bytes(hardware)
        known: dict[Feed, Key] = {}
        self.keys = [
            known.get(step.reads) or known.setdefault(step.reads, table_of(step.reads)) for step in program.streams
        ]
        self.contents: dict[Key, _Content] = {}
        first = 0
        for key in dict.fromkeys(self.keys):
            self.contents[key] = content = _Content(_numbers(key), first)
            first += content.numbers.size
        self.tensor = Tensor(NAME, (1, first), number_bytes=self.bytes)
        sizes = [table_words(key, each.numbers.shape[0] * key[0], hardware) for key, each in self.contents.items()]
        # Biases stand in words that `hardware` was left without.
        biases = sum(each.words for each in program.buffers if each.tensor == BIAS)
        bases, self.words = places(sizes, program.words - biases, hardware)
        self.bases = [base + biases for base in bases]
        self.loads, self.uses = assign_buffers(self.keys, len(self.bases))

    def pointed(self) -> Pointed:
        """The Program with everything put in."""
        fills = self._fills()
        steps = _with_fills(self.program, fills, self._feeds(), self.uses)
        numbers = np.concatenate([each.numbers.reshape(-1) for each in self.contents.values()])
        program = replace(
            self.program,
            tensors=(*self.program.tensors, self.tensor),
            buffers=(*self.program.buffers, Buffer(NAME, self.program.words, self.words, 1)),
            steps=steps,
            constants=(*self.program.constants, Constant(NAME, numbers.astype(np.int32).tobytes())),
        )
        moved = sum(fill.hbm_bytes for _, fill in fills)
        return Pointed(program, len(self.contents), self.tensor.size, self.words, len(fills), moved)

    def _fills(self) -> list[tuple[int, Fill]]:
        """Each load of a table as a fill, and the step before which it stands: the first that brings what only the
        pass that needs it or later ones wait for, or the preload of the pass before; once what was there has been read.
        """
        streams = [index for index, step in enumerate(self.program.steps) if isinstance(step, Stream)]
        brought, fills = _brought(self.program), []
        for load in self.loads:
            ahead = self.program.streams[max(0, load.stage - 1)].preload
            freed = tuple(streams[load.freed : load.freed + 1]) if load.freed >= 0 else ()
            place = max(min(ahead, brought[load.stage]), *(index + 1 for index in freed), 0)
            fills.append((place, self._fill(load, freed)))
        return fills

    def _fill(self, load: Load[Key], freed: tuple[int, ...]) -> Fill:
        numbers, first = self.contents[load.key]
        items = (Along(1, range(first, first + numbers.size)),)
        part = Part(self.bases[load.buffer], (0,), (Along(0, range(1)),), items, self.per_word)
        moved = whole_bursts(numbers.size * self.bytes, self.hardware.hbm.burst_bytes)
        return Fill(freed, self.tensor, (part,), moved)

    def _feeds(self) -> list[Feed]:
        """What each pass reads now."""
        made: dict[tuple[Feed, int], Feed] = {}
        feeds = []
        for step, use in zip(self.program.streams, self.uses, strict=True):
            load = self.loads[use]
            name = step.reads, load.buffer
            if name not in made:
                made[name] = self._feed(step.reads, load)
            feeds.append(made[name])
        return feeds

    def _feed(self, feed: Feed, load: Load[Key]) -> Feed:
        repeat, _ = load.key
        numbers = self.contents[load.key].numbers
        pixels, together = numbers.shape
        table = PointerTable(self.bases[load.buffer], pixels, together, self.per_word, repeat)
        stored = np.count_nonzero(numbers % 2 == 0, axis=0).tolist()
        return Feed(
            tuple(
                group._replace(pattern=Pointers(table, which, _base(group.pattern), stored[which]))
                for which, group in enumerate(feed.groups)
            )
        )


def places(tables: Sequence[int], base: int, hardware: Hardware) -> tuple[list[int], int]:
    """Where tables of so many words stand from word `base` on: the first word of each, or, where they do not all fit,
    of as many as fit of the largest; and the words of them all.

    Raises:
        CapacityError: when not even one fits.
    """
    room, largest = hardware.capacity_words - base, max(tables)
    if sum(tables) <= room:
        return [base + before for before in accumulate(tables[:-1], initial=0)], sum(tables)
    count = room // largest
    if not count:
        raise CapacityError(
            f"the pointers of a pass need {largest} words beside the {base} of its operands, and the vector memory "
            f"has {hardware.capacity_words}; set vector_memory.capacity to at least "
            f"{(base + largest) * hardware.word_bytes} B"
        )
    return [base + at * largest for at in range(count)], count * largest


def table_words(key: Key, words: int, hardware: Hardware) -> int:
    """Words of the table of a pass over so many words."""
    repeat, walks = key
    return -(-(words // repeat) * len(walks) // pointers_a_word(hardware))


def _with_fills(
    program: Program, fills: Sequence[tuple[int, Fill]], feeds: Sequence[Feed], uses: Sequence[int]
) -> tuple[Step, ...]:
    """The steps with `fills` in their places, and passes that wait for theirs and read by `feeds`."""
    before: defaultdict[int, list[int]] = defaultdict(list)
    for number, (place, _) in enumerate(fills):
        before[place].append(number)
    steps: list[Step] = []
    at: dict[int, int] = {}
    filled: dict[int, int] = {}
    passes = zip(feeds, uses, strict=True)
    for index, step in enumerate(program.steps):
        for number in before[index]:
            filled[number] = len(steps)
            steps.append(_renumbered(fills[number][1], at))
        at[index] = len(steps)
        if isinstance(step, Stream):
            reads, use = next(passes)
            after = (*(at[each] for each in step.after), filled[use])
            steps.append(replace(step, after=after, preload=at[step.preload], reads=reads))
        else:
            steps.append(_renumbered(step, at))
    return tuple(steps)


def _brought(program: Program) -> list[int]:
    """For each pass, the first step that brings what no pass before it, but it or one after it waits for; biases
    apart, which come long before they are waited for.
    """
    seen: set[int] = set()
    news = []
    for stream in program.streams:
        waits = {*stream.after, *program.steps[stream.preload].after} - seen
        seen |= waits
        fills = ((each, program.steps[each]) for each in waits)
        own = (at for at, each in fills if isinstance(each, Inbound) and each.tensor.name != BIAS)
        news.append(min(own, default=len(program.steps)))
    return [*accumulate(reversed(news), min)][::-1]


def _renumbered(step: Step, at: Mapping[int, int]) -> Step:
    """The step, waiting for the same steps at their new places."""
    after = tuple(at[each] for each in step.after)
    return step if after == step.after else replace(step, after=after)


# ---- what a pass reads, apart from where it begins


def table_of(feed: Feed) -> Key:
    """The table that a pass would read by."""
    walks = [_walk(group.pattern) for group in feed.groups]
    repeats = {_shared(walk) for walk in walks}
    if len(repeats) == 1 and (repeat := repeats.pop()) > 1:
        return repeat, tuple(_once(walk) for walk in walks)
    return 1, tuple(walks)


def _walk(pattern: AddressPattern) -> Walk:
    match pattern:
        case Counters():
            return pattern._replace(base=0)
        case Table():
            return pattern
    raise TypeError("the pass reads through pointers already")


def _base(pattern: AddressPattern) -> int:
    return pattern.base if isinstance(pattern, Counters) else 0


def _shared(walk: Walk) -> int:
    """Neighbouring words that a pixel's pointer stands for: the last counter, if it only counts words."""
    if not isinstance(walk, Counters) or walk.window is not None or len(walk.counters) < 2:
        return 1
    last = walk.counters[-1]
    return last.length if last == Counter(last.length, 0, 1, last.length, 1) else 1


def _once(walk: Walk) -> Walk:
    """The first of the words that share a pointer."""
    return walk._replace(counters=walk.counters[:-1]) if isinstance(walk, Counters) else walk


def _numbers(key: Key) -> NDArray[np.int64]:
    """The pointers of a table, [pixel, lane group]."""
    walks = [walked(walk) for walk in key[1]]
    return np.stack([encoded(addresses, ~stored) for stored, addresses in walks], axis=1)
