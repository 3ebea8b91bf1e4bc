"""What the lowerings of an attention and of its gradients have in common: tokens and heads in lanes, and steps of the
vector unit on words of all lanes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import NamedTuple, TypeAlias

from tpusim.base.words import counted
from tpusim.machines.tpu.cut.attention import AttentionPlan, GradientPlan
from tpusim.machines.tpu.cut.blocks import CHANNEL, IMAGE
from tpusim.machines.tpu.cut.tiling import delay_of
from tpusim.machines.tpu.cut.traffic import Traffic
from tpusim.machines.tpu.lowering.drafts import memory_of
from tpusim.machines.tpu.lowering.vector import lane_step, nested, tiled
from tpusim.machines.tpu.program.addresses import Counters
from tpusim.machines.tpu.program.program import Explanation
from tpusim.machines.tpu.program.steps import NO_SCALARS, Scalars, Vector
from tpusim.machines.tpu.program.tensors import Tensor
from tpusim.machines.tpu.program.transfers import Along, Part
from tpusim.machines.tpu.schedule.units import Area, Key, Moves, Piece, Units
from tpusim.memory.hbm_layout import Box
from tpusim.network.ops.flash_attention import KEYS, LAST, NUMBERS
from tpusim.network.ops.op import OFMAP, Shape
from tpusim.result.records import Blocking


class HeadWork(NamedTuple):
    """A block of queries of a head, and what is done, as `work` says by the area that is written or read: with a part
    of the keys or of the arrays, and with a fold of the queries.
    """

    image: int
    head: int
    block: int
    work: str
    part: int = 0
    fold: int = 0


AreaContent: TypeAlias = tuple[str, int, Callable[[Key, int, bool], Sequence[Piece]] | None]
"""The tensor of an area, its lanes, and how loads of it are cut; None: it is made there."""


class HeadUnits(Units):
    """Units of an attention, or of its gradients, head by head and block by block of the queries."""

    def __init__(self, plan: AttentionPlan | GradientPlan) -> None:
        self.cut, self.layer, self.word_fill = plan, plan.layer, plan.word
        self.traffic = Traffic(plan.hardware)
        self.named = {name: self._tensor(name, shape) for name, shape in plan.layer.shapes(plan.batch).items()}
        self.tensors = (*self.named.values(),)

    def _tensor(self, name: str, shape: Shape) -> Tensor:
        wide = 1 if name in self.layer.fixed else self.cut.hardware.hbm.channel_multiple
        return tiled(name, shape, wide)

    def held(self, contents: Mapping[str, AreaContent]) -> tuple[Area, ...]:
        """Areas of the plan's sizes; one without a content of its own holds what is made, a query a lane."""
        delay, found = delay_of(self.cut.sizes[KEYS][0], self.cut.hardware, begins=False), list[Area]()
        for name, (words, count) in self.cut.sizes.items():
            tensor, lanes, cut = contents.get(name, (OFMAP, self.cut.lanes, None))
            ready = (lambda _: delay) if name == KEYS else None
            found.append(Area(name, tensor, words, count, lanes, cut, ready))
        return tuple(found)

    # ---- into the lanes, and out

    def of_tokens(self, name: str, tokens: range, head: int, parts: Sequence[Part]) -> Moves:
        """A transfer of parts that have the elements of a head of some tokens, as they are counted in HBM."""
        return self.traffic.moves(
            self.named[name], tuple(parts), (Box(self.of_head(head), range(1), range(1), tokens),)
        )

    def of_head(self, head: int) -> range:
        """The channels of a head."""
        return range(head * self.layer.head, (head + 1) * self.layer.head)

    def asked(self, image: int, keys: range) -> range:
        """Keys of a sequence, as they are counted in HBM."""
        first = image * self.layer.of_keys
        return range(first + keys.start, first + keys.stop)

    def asking(self, image: int, queries: range) -> range:
        """Queries of a sequence, as they are counted in HBM."""
        first = image * self.layer.queries
        return range(first + queries.start, first + queries.stop)

    def of_block(self, image: int, block: int) -> range:
        """The queries of a block."""
        folds = self.cut.blocks[block]
        return self.asking(image, range(folds[0].start, folds[-1].stop))

    def lanes_of(self, queries: range) -> Along:
        """The query of each lane. Lanes beyond the last query name an image that no tensor has, and so hold zeros."""
        return Along(IMAGE, (*queries, *(-1,) * (self.cut.lanes - len(queries))))

    def in_lanes(self, name: str, key: tuple[int, int, int], base: int) -> Iterator[Moves]:
        """The elements of a head of the queries of a block, a query a lane, fold by fold."""
        image, head, block = key
        items, apart = (Along(CHANNEL, self.of_head(head)),), self.cut.head_words
        lanes = [(self.lanes_of(self.asking(image, fold)),) for fold in self.cut.blocks[block]]
        parts = [Part(base + at * apart, (0,), lane, items, self.cut.word) for at, lane in enumerate(lanes)]
        yield self.of_tokens(name, self.of_block(image, block), head, parts)

    def streamed(self, name: str, tokens: range, head: int, base: int, apart: int) -> Moves:
        """The elements of a head of keys or values that stream past queries, a channel a lane; chunks lie `apart`."""
        channels = self.of_head(head)
        parts = [
            Part(base + at * apart, (0,), (Along(CHANNEL, channels[chunk.start : chunk.stop]),),
                 (Along(IMAGE, tokens),), self.cut.word)
            for at, chunk in enumerate(self.cut.chunks)
        ]  # fmt: skip
        return self.of_tokens(name, tokens, head, parts)

    def numbers(self, keys: range, base: int) -> Moves:
        """The numbers of keys in every lane; behind the last key there are zeros."""
        lanes = Along(IMAGE, (0,) * self.cut.lanes)
        moved = Part(base, (0,), (lanes,), (Along(CHANNEL, keys),), self.cut.word)
        return self.traffic.moves(self.named[NUMBERS], (moved,), (Box(keys, range(1), range(1), range(1)),))

    def last(self, block: int, base: int) -> Iterator[Moves]:
        """The last key that each query sees, a word a fold."""
        folds, items = self.cut.blocks[block], (Along(CHANNEL, range(1)),)
        parts = tuple([Part(base + at, (0,), (self.lanes_of(fold),), items, 1) for at, fold in enumerate(folds)])
        box = Box(range(1), range(1), range(1), self.of_block(0, block))
        yield self.traffic.moves(self.named[LAST], parts, (box,))

    # ---- the vector unit

    def step(
        self, name: str, walks: Sequence[Counters], writes: Counters, number: int = -1,
        coefficients: tuple[float, ...] = (),
    ) -> Vector:  # fmt: skip
        """A step on words of all lanes, perhaps with the number at the beginning of word `number` of each."""
        scalars = NO_SCALARS if number < 0 else Scalars(number, 1, 1)
        return lane_step(self.cut.lanes, name, walks, writes, scalars=scalars, coefficients=coefficients)

    def joined(
        self, name: str, firsts: Sequence[int], apart: int, count: int, together: int, to: int, folds: int
    ) -> Iterator[Vector]:
        """Steps that join `count` words, or pairs of words that begin at each of `firsts`, fold by fold: `together` at
        a time, the rest at last. Folds lie `apart`.
        """
        whole, rest = divmod(count, together)
        made = whole + (rest > 0)
        for start, words, each in ((0, whole, together), (whole, 1, rest)):
            if words and each:
                at = [first + start * together + one for one in range(each) for first in firsts]
                walks = [nested(word, (folds, apart), (words, together)) for word in at]
                yield self.step(name, walks, nested(to + start, (folds, made), (words, 1)))

    def in_a_word(
        self, name: str, firsts: Sequence[int], apart: int, words: int, free: int, folds: int, first: str = ""
    ) -> tuple[list[Vector], int]:
        """Steps that join `words` of each fold to one, level by level, in words from `free` on, and where these are.

        The first level is done by another operation, if one is given: on pairs.
        """
        steps, count, of = list[Vector](), words, len(firsts)
        for at, (together, left) in enumerate(self.cut.levels(words, of)):
            steps += self.joined(name if at or not first else first, firsts, apart, count, together, free, folds)
            firsts, apart, count, free = (free,), left, left, free + left * folds
        return steps, firsts[0]


def explained(
    plan: AttentionPlan | GradientPlan, choices: Mapping[str, int], tiles: str, passes: str, vector: str, order: str,
    chunks: str = "", parts: int = 1,
) -> Explanation:  # fmt: skip
    """What is told of an attention, or of its gradients: its tiles of keys, what streams past what, what the vector
    unit does, and the order; and of its `parts` of the keys, where there may be several.
    """
    folds, every = len(plan.blocks[0]), plan.layer.heads * plan.sequences * len(plan.blocks)
    blocking = Blocking(
        rows=1, cols=1, images=plan.block, blocks=every, row_folds=len(plan.chunks), col_folds=folds,
        loop_order="block_major", word_fill=plan.word, strips=1, chunks=parts,
    )  # fmt: skip
    areas = ((name, (words, count if count > 1 else 0)) for name, (words, count) in plan.sizes.items())
    aspects = {
        "folds": f"{counted(folds, 'fold')} of queries{tiles}",
        "passes": passes,
        "block": f"queries of a head, {plan.block} at a time; {counted(every, 'block')} in all",
        **({"chunks": chunks} if chunks else {}),
        "vector": vector,
        "order": order,
        "words": f"{plan.word} of {counted(plan.word, 'element')} used; words of scores have an element for each key",
        "memory": memory_of(areas, plan.hardware),
    }
    return Explanation(1, blocking, choices, aspects)
