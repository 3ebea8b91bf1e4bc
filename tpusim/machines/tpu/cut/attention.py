"""Attention cut up: blocks of queries and parts of the keys, whose scores stay on chip, and what fits a lane."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from itertools import product

from tpusim.base.errors import CapacityError, Problem
from tpusim.machines.tpu.cut.blocks import halves, padded, portions
from tpusim.machines.tpu.cut.tiling import fitting
from tpusim.machines.tpu.definition import beat_of, frame_of, stream_clients
from tpusim.machines.tpu.description import Hardware
from tpusim.machines.tpu.program.operations import Arity, pace_of
from tpusim.network.ops.flash_attention import KEYS, LAST, NUMBERS, VALUES, FlashAttention

QUERIES, SCORES, RUNNING, RESULTS = "queries", "scores", "running", "results"
"""Areas beside those that are named as the tensors in them: what runs along are the largest score of each query, before
and now, that of a part, a factor, and words on the way to that.
"""


@dataclass(frozen=True)
class AttentionPlan:
    """How an attention is cut up: `block` queries of a head at a time, and `part` keys for these at a time.

    A fold has as many queries as an array has columns, a tile as many keys as it has rows.
    """

    layer: FlashAttention
    batch: int
    hardware: Hardware
    block: int
    part: int

    @cached_property
    def word(self) -> int:
        """Elements of a word."""
        return self.hardware.vector_memory.word_elements

    @cached_property
    def tile(self) -> int:
        """The most rows of a pass: whole words of weights."""
        return self.hardware.array.rows // self.word * self.word

    @cached_property
    def lanes(self) -> int:
        """Lanes with queries."""
        return min(self.hardware.array.cols, self.block)

    @cached_property
    def sequences(self) -> int:
        """The number of sequences."""
        return self.layer.images or self.batch

    @cached_property
    def blocks(self) -> list[list[range]]:
        """The queries of a sequence, block by block, each fold by fold."""
        every = portions(self.layer.queries, self.lanes, self.block)
        return [
            [fold for fold in every if fold.start // self.block == at]
            for at in range(every[-1].start // self.block + 1)
        ]

    @cached_property
    def parts(self) -> list[range]:
        """The keys of a sequence, part by part."""
        return portions(self.layer.of_keys, self.part)

    @cached_property
    def chunks(self) -> list[range]:
        """Elements of a head whose products with keys a pass sums up."""
        return portions(self.layer.head, self.tile)

    def words_of(self, elements: int) -> int:
        """Words that elements of a lane take."""
        return -(-elements // self.word)

    @cached_property
    def head_words(self) -> int:
        """Words of the elements of a head."""
        return self.words_of(self.layer.head)

    @cached_property
    def output_words(self) -> int:
        """Words of an output while it is summed up; the last has the sum of powers."""
        return self.head_words + 1

    @cached_property
    def part_words(self) -> int:
        """Words of the scores of a query and a part."""
        return self.words_of(self.part)

    # ---- what a query sees

    def seen_by(self, query: int) -> int:
        """The number of first keys that a query sees."""
        layer = self.layer
        return layer.of_keys - (layer.queries - 1 - query) * layer.causal

    def seen(self, block: int) -> int:
        """The number of parts of which a query of a block sees any key."""
        return -(-self.seen_by(self.blocks[block][-1].stop - 1) // self.part)

    def clear(self, fold: range, part: int) -> int:
        """The number of first words of a part that are full of keys that each query of a fold sees."""
        keys = self.parts[part]
        return max(0, min(self.seen_by(fold.start), keys.stop) - keys.start) // self.word

    def masked(self, block: int, part: int) -> bool:
        """Whether a word of a part has a key that some query of a block does not see, or is not full of keys."""
        return self.clear(self.blocks[block][0], part) < self.words_of(len(self.parts[part]))

    # ---- room

    def levels(self, words: int) -> Iterator[tuple[int, int]]:
        """Yield for each level of steps that join `words` to one how many a step joins, and how many are left."""
        most, left = max(2, self.hardware.vector_unit.scalar_words * self.word), words
        while True:
            # As many are left at first as a word has elements, so that few operations wait for one another.
            together = min(most, -(-left // self.word) if left > self.word else max(2, left))
            left = -(-left // together)
            yield together, left
            if left == 1:
                return

    @cached_property
    def sizes(self) -> dict[str, tuple[int, int]]:
        """Words of a slot of each area, and the number of slots."""
        folds, tiles = len(self.blocks[0]), -(-self.part // self.tile)
        pairs = ((block, part) for block in range(len(self.blocks)) for part in range(self.seen(block)))
        masks = any(self.masked(*each) for each in pairs)
        joined = max(sum(left for _, left in self.levels(self.words_of(len(each)))) for each in self.parts)
        twice = min(2, self.layer.heads * self.sequences * len(self.blocks))
        # Sums of the array, and what becomes of them, are wider than elements.
        wide = -(-self.hardware.wide.word_bytes // self.hardware.word_bytes)
        return {
            QUERIES: (folds * self.head_words, twice),
            KEYS: (len(self.chunks) * self.part_words, 2),
            VALUES: (tiles * self.output_words, 2),
            NUMBERS: (self.part_words * masks, 2 * masks),
            LAST: (folds * masks, 2 * masks),
            SCORES: (folds * self.part_words * wide, 1),
            RUNNING: (folds * (4 + joined) * wide, 1),
            RESULTS: (folds * self.output_words * wide, twice),
        }

    @property
    def words(self) -> int:
        """Words of a lane."""
        return sum(words * count for words, count in self.sizes.values())

    # ---- about how long

    @cached_property
    def cycles(self) -> float:
        """Cycles of arrays and vector unit in turn, and between them of the way through the array."""
        hardware, wide = self.hardware, self.hardware.wide
        frame = frame_of(hardware, self.word, stream_clients(True))

        def passes(words: int) -> int:
            return max(frame.frames(words) * frame.period, hardware.preload_cycles)

        def paced(name: str, operands: int, scalars: int) -> float:
            work = pace_of(name, Arity(operands, scalars, 0), (), wide.vector_unit)
            return beat_of(operands, work, self.word, wide).a_word / operands

        tiles = -(-self.part // self.tile)
        streamed = len(self.chunks) * passes(self.part_words) + tiles * passes(self.output_words)
        worked = self.part_words * (paced("wide_maximum", self.word, 0) + paced("wide_exp", 1, 1))
        turn, cycles = 2 * (frame.latency + hardware.preload_cycles), 0.0
        for block, folds in enumerate(self.blocks):
            rounds = -(-len(folds) // hardware.array.queues)
            cycles += self.seen(block) * (rounds * streamed + len(folds) * worked + turn)
        return self.layer.heads * self.sequences * cycles


def planned(layer: FlashAttention, batch: int, hardware: Hardware) -> AttentionPlan:
    """The plan that is estimated to be fastest of those that fit: with the queries of a block that are given
    (`mapping.block.images`), and with no more keys of a part than are given (`in_channels`).

    Raises:
        CapacityError: when not even the smallest block fits, or an array has fewer rows than a word has elements.
    """
    word, (rows, cols) = hardware.vector_memory.word_elements, (hardware.array.rows, hardware.array.cols)
    if word > rows:
        says = f"the scores in a word of {word} elements are weights of as many rows, and an array has {rows}"
        raise CapacityError(Problem(f"{says}; write {rows} at most", "vector_memory.word_elements"))
    given, tile = hardware.mapping.block.given, rows // word * word
    asking = (
        [padded(given["images"], cols)] if "images" in given else [n * cols for n in halves(-(-layer.queries // cols))]
    )
    most = min(given.get("in_channels", layer.of_keys), layer.of_keys)
    plans = (
        AttentionPlan(layer, batch, hardware, min(block, layer.queries), min(tiles * tile, layer.of_keys))
        for block, tiles in product(asking, halves(-(-most // tile)))
    )
    return min(fitting(plans, lambda plan: plan.words, hardware), key=lambda plan: plan.cycles)
