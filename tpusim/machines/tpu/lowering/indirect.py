"""Indirect convolution (seed: the indirect convolution algorithm; Dukhan 2019, arXiv 1907.02129): every word of the
ifmap is found through a pointer.

The passes, their words and their order are those of channel-first implicit im2col; only the address counters are
replaced, as `PointedProgram` does for any Program. As in XNNPACK, a 1x1 convolution of stride 1 is the plain product,
images share their pointers, and padding is a pointer of its own kind.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import cache, partial
from itertools import accumulate, product
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from tpusim.base.errors import CapacityError
from tpusim.base.units import SIZE
from tpusim.base.words import counted
from tpusim.machines.tpu.cut.geometry import ConvShape, shape_of
from tpusim.machines.tpu.cut.plan import Plan
from tpusim.machines.tpu.cut.reduction import Cut
from tpusim.machines.tpu.cut.tiling import Counts, Tiling
from tpusim.machines.tpu.description import Hardware
from tpusim.machines.tpu.lowering.convolution import (
    CHANNEL_FIRST,
    PRODUCTS,
    Convolution,
    by_taps,
    draft_of,
    ranked_shapes,
)
from tpusim.machines.tpu.lowering.drafts import Draft, Lowering, explanation_of
from tpusim.machines.tpu.program.addresses import (
    AddressTable,
    Counter,
    Counters,
    Feed,
    Pointers,
    PointerTable,
    encoded,
    pointer_bytes,
    pointers_a_word,
    walked,
)
from tpusim.machines.tpu.program.program import Buffer, Constant, ExplainedProgram, Explanation, Program, StepCounts
from tpusim.machines.tpu.program.rows import Rows
from tpusim.machines.tpu.program.steps import Stream
from tpusim.machines.tpu.program.tensors import Tensor
from tpusim.machines.tpu.program.transfers import Along, Fill, InboundTransfer, Part
from tpusim.machines.tpu.schedule.scheduler import Ring, Tenancy
from tpusim.machines.tpu.schedule.units import Area
from tpusim.machines.tpu.search.estimates import Candidates
from tpusim.machines.tpu.search.search import RankedTiling, tilings_of
from tpusim.memory.hbm_layout import whole_bursts
from tpusim.network.ops.array_op import ArrayOp
from tpusim.network.ops.fused import BIAS

NAME = "pointers"
"""The name of the tensor of pointers, and of its buffers."""

PlainWalk: TypeAlias = Counters | AddressTable
"""The words that a pattern visits, as counters from word 0 on."""

PointedWalks: TypeAlias = tuple[int, tuple[PlainWalk, ...]]
"""Identifies a table of pointers: the words that share pointers, and the words that each lane group visits."""


def loaded(wanted: Sequence[Hashable], slots: int) -> list[Tenancy]:
    """For each pass the tenancy of the table that it wants; slots have numbers, from 0 on, for words."""
    ring = Ring(Area(NAME, NAME, 1, slots, 1), 0)
    return [ring.wanted(key, at, at) for at, key in enumerate(wanted)]


class PointedProgram:
    """A Program of the same passes over the same words, every address of theirs read from the vector memory.

    Passes that read alike, from whatever base, share a table. What the vector memory has room for stays there; of
    more tables than that, the oldest gives way.

    Attributes:
        without: the Program as it was.
        program: with everything put in.
        tables: the pointers of each table for passes that read alike, [pixel, lane group]; in the `tensor` one follows
            the other.
        words: of the vector memory of lane 0.
        fills: initialisations, each with the step before which it stands; of a table more than one, where not all of
            them fit.
        hbm_bytes: moved by all fills.

    Raises:
        CapacityError: when there is no room for a table, a word holds no pointer, or a lane has more words than can be
            told apart.
    """

    def __init__(self, program: Program, hardware: Hardware) -> None:
        self.without, self.hardware = program, hardware
        self.per_word, self.bytes = pointers_a_word(hardware), pointer_bytes(hardware)
        self.known = {feed: table_of(feed) for feed in dict.fromkeys(step.reads for step in program.streams)}
        self.keys = [self.known[step.reads] for step in program.streams]
        self.tables: dict[PointedWalks, NDArray[np.int64]] = {}
        for key in dict.fromkeys(self.keys):
            walks = (walked(walk) for walk in key[1])
            self.tables[key] = np.stack([encoded(addresses, ~stored) for stored, addresses in walks], axis=1)
        self.streams = [at for at, _ in program.rows.steps(Stream)]
        self.brought = _brought(program)
        self.firsts = dict(zip(self.tables, accumulate(map(np.size, self.tables.values()), initial=0), strict=False))
        self.tensor = Tensor(NAME, (1, sum(map(np.size, self.tables.values()))), number_bytes=self.bytes)
        sizes = [table_words(key, each.shape[0] * key[0], hardware) for key, each in self.tables.items()]
        # Biases stand in words that `hardware` was left without.
        biases = sum(each.words for each in program.buffers if each.tensor == BIAS)
        bases, self.words = places(sizes, program.words - biases, hardware)
        self.bases = [base + biases for base in bases]
        self.uses = loaded(self.keys, len(self.bases))
        self.fills = [self._filled(load) for load in dict.fromkeys(self.uses)]
        self.hbm_bytes = sum(fill.hbm_bytes for _, _, fill in self.fills)
        numbers = np.concatenate([each.reshape(-1) for each in self.tables.values()])
        self.program = replace(
            program,
            tensors=(*program.tensors, self.tensor),
            buffers=(*program.buffers, Buffer(NAME, program.words, self.words, 1)),
            rows=self._rows(),
            constants=(*program.constants, Constant(NAME, numbers.astype(np.int32).tobytes())),
        )

    def _filled(self, load: Tenancy) -> tuple[int, Tenancy, Fill]:
        """A load of a table as a fill, and the step before which it stands: the first that brings what only the pass
        that needs it or later ones wait for, or the preload of the pass before; once what was there has been read.
        """
        ahead = int(self.without.rows.table["preload"][self.streams[max(0, load.first - 1)]])
        freed = (self.streams[load.before.last],) if load.before else ()
        place = max(min(ahead, self.brought[load.first]), *(index + 1 for index in freed), 0)
        first, size = self.firsts[load.key], self.tables[load.key].size
        items = (Along(1, range(first, first + size)),)
        part = Part(self.bases[load.base], (0,), (Along(0, range(1)),), items, self.per_word)
        moved = whole_bursts(size * self.bytes, self.hardware.hbm.burst_bytes)
        return place, load, Fill(freed, self.tensor, (part,), moved)

    def _rows(self) -> Rows:
        """The rows with fills in their places, and passes that wait for theirs and read through pointers."""
        rows, count = self.without.rows, len(self.without.rows)
        number = {load: count + at for at, (_, load, _) in enumerate(self.fills)}
        waits = [(each, number[load]) for each, load in zip(self.streams, self.uses, strict=True)]
        waits += [(number[load], each) for _, load, fill in self.fills for each in fill.after]
        known: dict[tuple[int, Feed, int], Stream] = {}
        passes: dict[int, Stream] = {}
        for (at, step), load in zip(rows.steps(Stream), self.uses, strict=True):
            recipe = rows.recipe(at)
            assert isinstance(recipe, Stream)
            key = int(rows.table["recipe"][at]), step.reads, load.base
            if key not in known:
                known[key] = replace(recipe, reads=self._feed(step.reads, load.base))
            passes[at] = known[key]
        # A fill stands before its step; several keep their order.
        places = [*range(count), *(place - 0.5 for place, *_ in self.fills)]
        order = sorted(range(len(places)), key=places.__getitem__)
        fills = Rows.of([replace(fill, after=()) for *_, fill in self.fills])
        pairs = np.array(waits, np.int64).T
        return Rows.together([rows.exchanged(passes), fills]).arranged(order, (pairs[0], pairs[1]))

    def _feed(self, reads: Feed, slot: int) -> Feed:
        """What passes that read so read through pointers of a table in a slot."""
        repeat, _ = key = self.known[reads]
        pixels, together = self.tables[key].shape
        table = PointerTable(self.bases[slot], pixels, together, self.per_word, repeat)
        stored = np.count_nonzero(self.tables[key] % 2 == 0, axis=0).tolist()
        groups = []
        for which, group in enumerate(reads.groups):
            base = group.pattern.base if isinstance(group.pattern, Counters) else 0
            groups.append(group._replace(pattern=Pointers(table, which, base, stored[which])))
        return Feed(tuple(groups))


def places(tables: Sequence[int], base: int, hardware: Hardware) -> tuple[list[int], int]:
    """The first word of each table of such sizes, from word `base` on, and the number of words of all tables.

    Where not all of them fit, there are as many slots as fit, each of the largest size.

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


def table_words(key: PointedWalks, words: int, hardware: Hardware) -> int:
    """Words of the table of a pass over that many words."""
    repeat, walks = key
    return -(-(words // repeat) * len(walks) // pointers_a_word(hardware))


def _brought(program: Program) -> list[int]:
    """For each pass, the first step that brings what no pass before it, but it or one after it waits for; biases
    apart, which come long before they are waited for.
    """
    rows, news, seen = program.rows, list[int](), set[int]()
    brings = rows.told(lambda each: isinstance(each, InboundTransfer) and each.tensor.name != BIAS)
    for at, _ in rows.steps(Stream):
        waits = {*rows.after(at), *rows.after(rows.table["preload"][at])} - seen
        seen |= waits
        news.append(min((each for each in waits if brings[each]), default=len(rows)))
    return [*accumulate(reversed(news), min)][::-1]


# ---- what a pass reads, apart from where it begins


def table_of(feed: Feed) -> PointedWalks:
    """The table that a pass would read by."""
    walks: list[PlainWalk] = []
    for group in feed.groups:
        pattern = group.pattern
        if not isinstance(pattern, Counters | AddressTable):
            raise TypeError("the pass reads through pointers already")
        walks.append(pattern._replace(base=0) if isinstance(pattern, Counters) else pattern)
    repeats = {_shared(walk) for walk in walks}
    if len(repeats) == 1 and (repeat := repeats.pop()) > 1:
        # Of words that share a pointer the first is walked over.
        return repeat, tuple(walk._replace(counters=walk.counters[:-1]) for walk in walks if isinstance(walk, Counters))
    return 1, tuple(walks)


def _shared(walk: PlainWalk) -> int:
    """Neighbouring words that a pixel's pointer stands for: the last counter, if it only counts words."""
    if not isinstance(walk, Counters) or walk.window is not None or len(walk.counters) < 2:
        return 1
    last = walk.counters[-1]
    return last.length if last == Counter(last.length, 0, 1, last.length, 1) else 1


def ways(layer: ArrayOp, batch: int, hardware: Hardware) -> list[Draft]:
    """The tilings of channel_first, where the pointers fit beside them; else the best with which they do.

    Raises:
        CapacityError: when no tiling fits the vector memories together with its pointers, or a word holds no pointer.
    """

    def draft(plan: Plan, rank: RankedTiling) -> Draft:
        def finish(program: Program) -> ExplainedProgram:
            pointed = PointedProgram(program, hardware)
            return pointed.program, _explained(explanation_of(plan, layer), pointed, plan)

        return replace(draft_of(plan, layer, rank), make=partial(PointerConvolution, plan), finish=finish)

    return [draft(plan, rank) for plan, rank in plans_of(layer, batch, hardware)]


class PointerConvolution(Convolution):
    """A convolution whose passes are going to read through pointers, all of them on one array."""

    def __init__(self, plan: Plan) -> None:
        super().__init__(plan)
        self.policy = self.policy._replace(arrays=1)

    def counted(self) -> StepCounts:
        """Fills of pointers among the transfers: one a table where all of them fit, else as the passes come."""
        steps, plan = super().counted(), self.plan
        assert steps
        # The words of each table, and which ones the passes of a block and a chunk read.
        sizes: list[int] = []
        tables: dict[PointedWalks, int] = {}
        known: dict[Hashable, list[int]] = {}
        read: dict[tuple[int, int], list[int]] = {}
        for (at, block), (number, chunk) in product(enumerate(plan.blocks), enumerate(plan.chunks)):
            # Blocks read alike where taps of the first column and of the first row are walked alike.
            patch, (rows, cols) = plan.patch(block, chunk), (chunk.tap_rows, chunk.tap_cols)
            taps = (*((row, cols[0]) for row in rows), *((rows[0], col) for col in cols))
            kind = number, tuple([plan.walk(tap, block, patch, chunk.by_tap)._replace(base=0) for tap in taps])
            if kind not in known:
                keys = [table_of(feed) for feed in plan.reads(chunk, block, 0)]
                new = (key for key in dict.fromkeys(keys) if key not in tables)
                sizes += [table_words(key, block.words, plan.hardware) for key in new]
                known[kind] = [tables.setdefault(key, len(tables)) for key in keys]
            read[at, number] = known[kind]
        bases, _ = places(sizes, plan.tiling.words, plan.hardware)
        if len(bases) == len(sizes):
            return steps._replace(transfers=steps.transfers + len(sizes))
        wanted: list[int] = []
        for stage in plan.stages:
            section = plan.sections[stage.section]
            first, numbers = plan.chunks[section.chunk].numbers.start, section.numbers
            wanted += read[stage.block, section.chunk][numbers.start - first : numbers.stop - first]
        return steps._replace(transfers=steps.transfers + len({*loaded(wanted, len(bases))}))


def plans_of(layer: ArrayOp, batch: int, hardware: Hardware) -> list[tuple[Plan, RankedTiling]]:
    """The plans of such tilings, with their ranks."""
    pointers_a_word(hardware)

    cut_by_taps = cache(by_taps)

    def ranks(shape: ConvShape, hardware: Hardware) -> tuple[RankedTiling, ...]:
        cut, found = cut_by_taps(shape, hardware), tuple[RankedTiling, ...]()
        with suppress(CapacityError):
            found = tilings_of(cut, hardware)
        words = [each.tiling.words + int(_pointer_words(cut, each.tiling, hardware)) for each in found]
        if not found or max(words) > hardware.capacity_words:
            return tilings_of(cut, hardware, _PointedCandidates)
        return found

    ways = ranked_shapes(ranks, shape_of(layer, batch, hardware), hardware)
    cuts = ((cut_by_taps(shape, hardware), rank) for shape, rank in ways)
    return [(Plan(cut.shape, hardware, rank.tiling, cut), rank) for cut, rank in cuts]


class _PointedCandidates(Candidates):
    """Blocks beside which there is room for pointers."""

    def lane_words(self, tilings: Tiling[Counts]) -> Counts:
        """Words of buffers and of pointers."""
        return np.asarray(tilings.words + _pointer_words(self.cut, tilings, self.hardware))


def _pointer_words(cut: Cut, tilings: Tiling[Counts] | Tiling[int], hardware: Hardware) -> Counts:
    """Words for pointers: those of the chunk in hand, and of the next one if its pointers may differ."""
    first, *_ = cut.chunks(cut.groups, 1)
    stacked = [len(each.runs) for each in first.passes]
    # A block that ends within a row may end within a pixel: every word has a pointer of its own.
    pixels = np.where(tilings.span, tilings.span, tilings.rows * tilings.cols)
    per_word = pointers_a_word(hardware)
    all_of_them = sum(-(-pixels * taps // per_word) for taps in stacked)
    ahead = 2 * tilings.chunk_taps * -(-pixels * max(stacked) // per_word)
    alone = (tilings.blocks == 1) & (tilings.chunk_taps == len(stacked))
    return np.where(alone, all_of_them, ahead)


def _explained(told: Explanation, pointed: PointedProgram, plan: Plan) -> Explanation:
    """The explanation of channel_first, with one more aspect."""
    choices = {
        "pointers": pointed.tensor.size, "pointer_words": pointed.words, "tables": len(pointed.tables),
        "initialisations": len(pointed.fills), "pointer_hbm_bytes": pointed.hbm_bytes,
    }  # fmt: skip
    hardware, shape = plan.hardware, plan.shape
    size, word = pointer_bytes(hardware), hardware.word_bytes
    taps, outputs = shape.row.kernel * shape.col.kernel, shape.row.extent * shape.col.extent
    more = 100 * pointed.hbm_bytes / (pointed.program.use.hbm_read_bytes - pointed.hbm_bytes)
    words = [
        f"{pointed.tensor.size:,} of {size} B, {word // size} to a word, for {taps} x {outputs:,} taps of outputs: "
        "images share them, and so do blocks that differ only in where they lie",
        f"{SIZE.format(pointed.words * word)} of lane 0 beside the buffers",
        f"{counted(len(pointed.fills), 'initialisation')} of {counted(len(pointed.tables), 'table')}, "
        f"{SIZE.format(pointed.hbm_bytes)} from HBM, {more:.2f} % more than without",
    ]
    if all(plan.tiling != each.tiling for each in tilings_of(plan.cut, hardware)):
        words.append("with counters the blocks would be others")
    aspects = {**told.aspects, "pointer": "; ".join(words)}
    return replace(told, choices={**told.choices, **choices}, aspects=aspects)


INDIRECT = Lowering(
    "indirect",
    "channel_first whose every address is read from a table of pointers",
    ways,
    carries=frozenset({"bias", "add", "finish"}),
    left=PRODUCTS,
    ignores=CHANNEL_FIRST.ignores,
)
