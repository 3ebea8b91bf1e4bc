"""Attention and its gradients cut up: blocks of queries and parts of the keys, whose scores stay on chip, and what fits
a lane.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from itertools import product

from tpusim.base.errors import CapacityError, Problem
from tpusim.machines.tpu.cut.blocks import halves, padded, portions
from tpusim.machines.tpu.cut.tiling import fitting
from tpusim.machines.tpu.definition import Frame, beat_of, frame_of, stream_clients
from tpusim.machines.tpu.description import Hardware
from tpusim.machines.tpu.program.operations import Arity, pace_of
from tpusim.network.ops.flash_attention import (
    KEYS,
    LAST,
    NUMBERS,
    QUERIES,
    VALUES,
    FlashAttention,
    FlashAttentionGradient,
)

SCORES, RUNNING, RESULTS = "scores", "running", "results"
"""Areas beside those that are named as the tensors in them: what runs along are the largest score of each query, before
and now, that of a part, a factor, and words on the way to that.
"""
OUTGOING, SHARES, SLOPES = "outgoing", "shares", "slopes"
"""Areas of gradients: that by the outputs, each query's in a lane; the shares of keys, and the gradients by scores."""
OUTGOING_ACROSS, QUERIES_ACROSS, KEYS_ALONG = "outgoing_across", "queries_across", "keys_along"
"""Areas of outgoing gradients and of queries with a channel in each lane, and of keys with a key in each."""
BY_KEYS, BY_VALUES = "by_keys", "by_values"
"""Areas of sums: gradients by keys and by values, a channel in each lane."""


@dataclass(frozen=True)
class _Cut(ABC):
    """What the cuts of an attention and of its gradients have in common: `block` queries of a head at a time.

    A fold has as many queries as an array has columns, a tile as many keys as it has rows.
    """

    layer: FlashAttention
    batch: int
    hardware: Hardware
    block: int

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

    # ---- what a query sees

    def seen_by(self, query: int) -> int:
        """The number of first keys that a query sees."""
        layer = self.layer
        return layer.of_keys - (layer.queries - 1 - query) * layer.causal

    # ---- room

    def levels(self, words: int, of: int = 1) -> Iterator[tuple[int, int]]:
        """Yield for each level of steps that join `words` to one, each of `of` operands, how many a step joins, and how
        many are left.
        """
        most, left = max(2, self.hardware.vector_unit.scalar_words * self.word // of), words
        while True:
            # As many are left at first as a word has elements, so that few operations wait for one another.
            together = min(most, -(-left // self.word) if left > self.word else max(2, left))
            left = -(-left // together)
            yield together, left
            if left == 1:
                return

    def joined(self, words: int, of: int = 1) -> int:
        """Words that are made on the way as `words` are joined to one."""
        return sum(left for _, left in self.levels(words, of))

    @cached_property
    def widened(self) -> int:
        """How many words a word of sums takes: these, and what becomes of them, are wider than elements."""
        return -(-self.hardware.wide.word_bytes // self.hardware.word_bytes)

    @property
    @abstractmethod
    def sizes(self) -> dict[str, tuple[int, int]]:
        """Words of a slot of each area, and the number of slots."""

    @property
    def words(self) -> int:
        """Words of a lane."""
        return sum(words * count for words, count in self.sizes.values())

    # ---- about how long

    @cached_property
    def _frame(self) -> Frame:
        return frame_of(self.hardware, self.word, stream_clients(True))

    @property
    def _turn(self) -> int:
        """Cycles of the way through the array, before what comes out can be worked on."""
        return self._frame.latency + self.hardware.preload_cycles

    def _passes(self, words: int) -> int:
        """Cycles of a pass over some words."""
        return max(self._frame.frames(words) * self._frame.period, self.hardware.preload_cycles)

    def _paced(self, name: str, operands: int, scalars: int = 0) -> float:
        """Cycles in which a step of the vector unit takes a word."""
        wide = self.hardware.wide
        work = pace_of(name, Arity(operands, scalars, 0), (), wide.vector_unit)
        return beat_of(operands, work, self.word, wide).a_word / operands


@dataclass(frozen=True)
class AttentionPlan(_Cut):
    """How an attention is cut up: also by `part` keys at a time, for the queries of a block."""

    part: int

    @cached_property
    def parts(self) -> list[range]:
        """The keys of a sequence, part by part."""
        return portions(self.layer.of_keys, self.part)

    @cached_property
    def output_words(self) -> int:
        """Words of an output while it is summed up; the last has the sum of powers."""
        return self.head_words + 1

    @cached_property
    def part_words(self) -> int:
        """Words of the scores of a query and a part."""
        return self.words_of(self.part)

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

    @cached_property
    def sizes(self) -> dict[str, tuple[int, int]]:
        """Words of a slot of each area, and the number of slots."""
        folds, tiles = len(self.blocks[0]), -(-self.part // self.tile)
        pairs = ((block, part) for block in range(len(self.blocks)) for part in range(self.seen(block)))
        masks = any(self.masked(*each) for each in pairs)
        joined = max(self.joined(self.words_of(len(each))) for each in self.parts)
        twice = min(2, self.layer.heads * self.sequences * len(self.blocks))
        wide = self.widened
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

    # ---- about how long

    @cached_property
    def cycles(self) -> float:
        """Cycles of arrays and vector unit in turn, and between them of the way through the array."""
        tiles = -(-self.part // self.tile)
        streamed = len(self.chunks) * self._passes(self.part_words) + tiles * self._passes(self.output_words)
        worked = self.part_words * (self._paced("wide_maximum", self.word) + self._paced("wide_exp", 1, 1))
        cycles = 0.0
        for block, folds in enumerate(self.blocks):
            rounds = -(-len(folds) // self.hardware.array.queues)
            cycles += self.seen(block) * (rounds * streamed + len(folds) * worked + 2 * self._turn)
        return self.layer.heads * self.sequences * cycles


@dataclass(frozen=True)
class GradientPlan(_Cut):
    """How the gradients of an attention are cut up: for the queries of a block all keys that they see, at once.

    A fold has no more queries than an array has rows, too, as its queries are also what products sum over.
    """

    @cached_property
    def lanes(self) -> int:
        return min(self.hardware.array.cols, self.tile, self.block)

    @cached_property
    def arrays(self) -> int:
        """Arrays with weights of their own that take the sums of keys in turn, stretch by stretch."""
        return min(self.hardware.array.queues, len(self.stretches))

    @cached_property
    def stretches(self) -> list[range]:
        """The keys of a sequence in stretches, each of which always goes to the same array: to one its sums belong."""
        keys = self.layer.of_keys
        return portions(keys, self.tile if self.hardware.array.queues > 1 else keys)

    @cached_property
    def tiles(self) -> list[range]:
        """The keys of a sequence, as many at a time as a pass sums over."""
        return portions(self.layer.of_keys, self.tile)

    @cached_property
    def columns(self) -> list[range]:
        """Elements of a head, as many at a time as an array has columns."""
        return portions(self.layer.head, self.hardware.array.cols)

    @cached_property
    def fold_words(self) -> int:
        """Words of the queries of a fold, where a lane has a channel."""
        return self.words_of(self.lanes)

    @cached_property
    def key_words(self) -> int:
        """Words of all keys of a sequence."""
        return self.words_of(self.layer.of_keys)

    @cached_property
    def stretch_words(self) -> int:
        """Words of the stretches of an array."""
        return -(-len(self.stretches) // self.arrays) * self.words_of(len(self.stretches[0]))

    def seen(self, block: int) -> int:
        """The number of first words with keys of which a query of a block sees any."""
        return self.words_of(self.seen_by(self.blocks[block][-1].stop - 1)) if block >= 0 else 0

    def clear(self, fold: range) -> int:
        """The number of first words that are full of keys that each query of a fold sees."""
        return self.seen_by(fold.start) // self.word

    def masks(self, block: int) -> int:
        """The number of words with keys that some query of a block does not see, or that are not full of keys."""
        return self.seen(block) - self.clear(self.blocks[block][0])

    @cached_property
    def sizes(self) -> dict[str, tuple[int, int]]:
        """Words of a slot of each area, and the number of slots."""
        folds, every, wide = len(self.blocks[0]), range(len(self.blocks)), self.widened
        masks = max(map(self.masks, every))
        joined = max(max(self.joined(words), self.joined(words, 2)) for words in map(self.seen, every))
        across, chunks, columns = folds * self.fold_words, len(self.chunks), len(self.columns)
        return {
            QUERIES: (folds * self.head_words, 2),
            OUTGOING: (folds * self.head_words, 2),
            KEYS: (chunks * self.key_words, 1),
            VALUES: (chunks * self.key_words, 1),
            NUMBERS: (masks, 2 * (masks > 0)),
            LAST: (folds * (masks > 0), 2 * (masks > 0)),
            SHARES: (self.key_words * wide, folds),
            SLOPES: (self.key_words * wide, folds),
            RUNNING: ((4 + joined) * wide, 1),
            OUTGOING_ACROSS: (columns * across, 2),
            QUERIES_ACROSS: (columns * across, 2),
            BY_VALUES: (columns * self.stretch_words * wide, self.arrays),
            BY_KEYS: (columns * self.stretch_words * wide, self.arrays),
            KEYS_ALONG: (len(self.tiles) * self.head_words, 1),
            RESULTS: (self.head_words * wide, 2 * folds),
        }

    @cached_property
    def cycles(self) -> float:
        """Cycles of arrays and vector unit in turn, and between them of the way through the array."""
        cycles = 0.0
        steps = (
            ("wide_maximum", self.word, 0, 1), ("wide_exp", 1, 1, 1), ("wide_add", self.word, 0, 1),
            ("wide_mul", 1, 1, 1), ("wide_sum_of_products", 2 * self.word, 0, 2), ("wide_shares_less", 2, 1, 2),
        )  # fmt: skip
        worked = sum(of * self._paced(name, operands, scalars) for name, operands, scalars, of in steps)
        for block, folds in enumerate(self.blocks):
            words, rounds = self.seen(block), -(-len(folds) // self.hardware.array.queues)
            streamed = (2 * len(self.chunks) + 2 * len(self.columns)) * self._passes(words)
            streamed += -(-words * self.word // self.tile) * self._passes(self.head_words)
            cycles += rounds * streamed + len(folds) * words * worked + 3 * self._turn
        return self.layer.heads * self.sequences * cycles


def planned(layer: FlashAttention, batch: int, hardware: Hardware) -> AttentionPlan:
    """The plan that is estimated to be fastest of those that fit: with the queries of a block that are given
    (`mapping.block.images`), and with no more keys of a part than are given (`in_channels`).

    Raises:
        CapacityError: when not even the smallest block fits, or an array has fewer rows than a word has elements.
    """
    word, (rows, cols) = _filling(hardware), (hardware.array.rows, hardware.array.cols)
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


def gradient_planned(layer: FlashAttentionGradient, batch: int, hardware: Hardware) -> GradientPlan:
    """The plan of the gradients of an attention: with the queries of a block that are given (`mapping.block.images`),
    else with a fold for each array that has weights of its own.

    Raises:
        CapacityError: when that does not fit, or an array has fewer rows than a word has elements.
    """
    word, array = _filling(hardware), hardware.array
    fold = min(array.cols, array.rows // word * word)
    block = padded(hardware.mapping.block.given.get("images", array.queues * fold), fold)
    plan = GradientPlan(layer, batch, hardware, min(block, layer.queries))
    return next(fitting([plan], lambda each: each.words, hardware))


def _filling(hardware: Hardware) -> int:
    """Elements of a word. Raises CapacityError where an array has fewer rows."""
    word, rows = hardware.vector_memory.word_elements, hardware.array.rows
    if word > rows:
        says = f"the scores in a word of {word} elements are weights of as many rows, and an array has {rows}"
        raise CapacityError(Problem(f"{says}; write {rows} at most", "vector_memory.word_elements"))
    return word
