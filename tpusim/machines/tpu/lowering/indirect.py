"""Indirect convolution (seed: the indirect convolution algorithm; Dukhan 2019, arXiv 1907.02129): every word of the
ifmap is found through a pointer.

The passes, their words and their order are those of channel-first implicit im2col; only the address counters are
replaced. As in XNNPACK, a 1x1 convolution of stride 1 is the plain product, images share their pointers, and padding is
a pointer of its own kind.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator
from contextlib import suppress
from dataclasses import replace
from functools import cached_property, lru_cache, partial
from itertools import product

import numpy as np

from tpusim.base.errors import CapacityError
from tpusim.base.units import SIZE
from tpusim.base.words import counted
from tpusim.machines.tpu.description import Hardware
from tpusim.machines.tpu.lowering import channel_first
from tpusim.machines.tpu.lowering.block import Block
from tpusim.machines.tpu.lowering.candidates import Candidates
from tpusim.machines.tpu.lowering.convolution import Convolution, draft_of, is_a_product, tilings_by
from tpusim.machines.tpu.lowering.drafts import Draft, Left, Lowering
from tpusim.machines.tpu.lowering.geometry import ConvShape, shape_of
from tpusim.machines.tpu.lowering.plan import Plan
from tpusim.machines.tpu.lowering.pointed import (
    Key,
    Pointed,
    assign_buffers,
    places,
    table_of,
    table_words,
    with_pointers,
)
from tpusim.machines.tpu.lowering.reduction import Chunk, Cut
from tpusim.machines.tpu.lowering.search import Ranked, tilings_of
from tpusim.machines.tpu.lowering.tiling import Counts, Tiling
from tpusim.machines.tpu.lowering.words import explanation_of
from tpusim.machines.tpu.program.addresses import Counters, pointer_bytes, pointers_a_word
from tpusim.machines.tpu.program.program import Explanation, Lowered, Planned, Program
from tpusim.machines.tpu.schedule.units import Policy
from tpusim.network.ops import ArrayOp


def ways(layer: ArrayOp, batch: int, hardware: Hardware) -> list[Draft]:
    """The tilings of channel_first, where the pointers fit beside them; else the best with which they do.

    Raises:
        CapacityError: when no tiling fits the vector memories together with its pointers, or a word holds no pointer.
    """

    def draft(plan: Plan, rank: Ranked) -> Draft:
        def finish(program: Program) -> Lowered:
            pointed = with_pointers(program, hardware)
            return pointed.program, _explained(explanation_of(plan, layer), pointed, plan)

        return replace(draft_of(plan, layer, rank), make=partial(WithPointers, plan), finish=finish)

    return [draft(plan, rank) for plan, rank in plans_of(layer, batch, hardware)]


class WithPointers(Convolution):
    """A convolution whose passes are going to read through pointers, all of them on one array."""

    @cached_property
    def policy(self) -> Policy:
        return super().policy._replace(arrays=1)

    def counted(self) -> Planned:
        """Fills of pointers among the transfers."""
        steps = super().counted()
        assert steps
        return steps._replace(transfers=steps.transfers + _initialisations(self.plan))


def _initialisations(plan: Plan) -> int:
    """How many fills of pointers there are: one a table where all of them fit, else as the passes come."""
    sizes, read = _tables(plan)
    bases, _ = places(sizes, plan.tiling.words, plan.hardware)
    if len(bases) == len(sizes):
        return len(sizes)
    wanted: list[int] = []
    for stage in plan.stages:
        section = plan.sections[stage.section]
        first, numbers = plan.chunks[section.chunk].numbers.start, section.numbers
        wanted += read[stage.block, section.chunk][numbers.start - first : numbers.stop - first]
    return len(assign_buffers(wanted, len(bases))[0])


def _tables(plan: Plan) -> tuple[list[int], dict[tuple[int, int], list[int]]]:
    """The words of each table, and which ones the passes of a block and a chunk read."""
    sizes: list[int] = []
    tables: dict[Key, int] = {}
    known: dict[Hashable, list[int]] = {}
    read: dict[tuple[int, int], list[int]] = {}
    for (at, block), (number, chunk) in product(enumerate(plan.blocks), enumerate(plan.chunks)):
        kind = number, _walks(plan, chunk, block)
        if kind not in known:
            keys = [table_of(feed) for feed in plan.reads(chunk, block, 0)]
            sizes += [table_words(key, block.words, plan.hardware) for key in dict.fromkeys(keys) if key not in tables]
            known[kind] = [tables.setdefault(key, len(tables)) for key in keys]
        read[at, number] = known[kind]
    return sizes, read


def _walks(plan: Plan, chunk: Chunk, block: Block) -> tuple[Counters, ...]:
    """Equal for blocks whose passes read alike: how taps of the first column and of the first row are walked."""
    patch, (rows, cols) = plan.patch(block, chunk), (chunk.tap_rows, chunk.tap_cols)
    taps = (*((row, cols[0]) for row in rows), *((rows[0], col) for col in cols))
    return tuple([plan.walk(tap, block, patch, chunk.by_tap)._replace(base=0) for tap in taps])


def plans_of(layer: ArrayOp, batch: int, hardware: Hardware) -> list[tuple[Plan, Ranked]]:
    """The plans of such tilings, with their ranks."""
    shape = shape_of(layer, batch, hardware)
    cut = channel_first.cut(shape, hardware)
    return [(Plan(shape, hardware, rank.tiling, cut), rank) for rank in _found(shape, hardware)]


@lru_cache(maxsize=1 << 16)
def _found(shape: ConvShape, hardware: Hardware) -> tuple[Ranked, ...]:
    pointers_a_word(hardware)
    cut = channel_first.cut(shape, hardware)
    with suppress(CapacityError):
        counted_on = tilings_by(channel_first.cut, shape, hardware)
        words = [each.tiling.words + int(_pointer_words(cut, each.tiling, hardware)) for each in counted_on]
        if max(words) <= hardware.capacity_words:
            return counted_on
    return tilings_of(shape, hardware, cut, _PointedCandidates)


class _PointedCandidates(Candidates):
    """Blocks beside which there is room for pointers."""

    def lane_words(self, tilings: Tiling[Counts]) -> Counts:
        """Words of buffers and of pointers."""
        return np.asarray(tilings.words + _pointer_words(self.cut, tilings, self.hardware))


def _pointer_words(cut: Cut, tilings: Tiling[Counts] | Tiling[int], hardware: Hardware) -> Counts:
    """Words that must be there for pointers: those of the chunk in hand, and of the next one where they may differ."""
    first, *_ = cut.chunks(cut.groups, 1)
    stacked = [len(each.runs) for each in first.passes]
    # A block that ends within a row may end within a pixel: every word has a pointer of its own.
    pixels = np.where(tilings.span, tilings.span, tilings.rows * tilings.cols)
    per_word = pointers_a_word(hardware)
    all_of_them = sum(-(-pixels * taps // per_word) for taps in stacked)
    ahead = 2 * tilings.chunk_taps * -(-pixels * max(stacked) // per_word)
    alone = (tilings.blocks == 1) & (tilings.chunk_taps == len(stacked))
    return np.where(alone, all_of_them, ahead)


def _explained(told: Explanation, pointed: Pointed, plan: Plan) -> Explanation:
    """The words of channel_first, and an aspect more."""
    choices = {
        "pointers": pointed.pointers, "pointer_words": pointed.words, "tables": pointed.tables,
        "initialisations": pointed.fills, "pointer_hbm_bytes": pointed.hbm_bytes,
    }  # fmt: skip
    aspects = {**told.aspects, "pointer": "; ".join(_words(pointed, plan))}
    return replace(told, choices={**told.choices, **choices}, aspects=aspects)


def _words(pointed: Pointed, plan: Plan) -> Iterator[str]:
    hardware, shape = plan.hardware, plan.shape
    size, word = pointer_bytes(hardware), hardware.word_bytes
    taps, outputs = shape.row.kernel * shape.col.kernel, shape.row.extent * shape.col.extent
    more = 100 * pointed.hbm_bytes / (pointed.program.use.hbm_read_bytes - pointed.hbm_bytes)
    yield (
        f"{pointed.pointers:,} of {size} B, {word // size} to a word, for {taps} x {outputs:,} taps of outputs: images "
        "share them, and so do blocks that differ only in where they lie"
    )
    yield f"{SIZE.format(pointed.words * word)} of lane 0 beside the buffers"
    yield (
        f"{counted(pointed.fills, 'initialisation')} of {counted(pointed.tables, 'table')}, "
        f"{SIZE.format(pointed.hbm_bytes)} from HBM, {more:.2f} % more than without"
    )
    if all(plan.tiling != each.tiling for each in tilings_by(channel_first.cut, shape, hardware)):
        yield "with counters the blocks would be others"


INDIRECT = Lowering(
    "indirect",
    "channel_first whose every address is read from a table of pointers",
    ways,
    left=Left(channel_first.CHANNEL_FIRST, is_a_product),
    ignores=channel_first.CHANNEL_FIRST.ignores,
)
