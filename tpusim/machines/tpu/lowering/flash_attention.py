"""Attention by blocks of queries and parts of the keys, whose scores stay on chip.

A lane has a query, and its scores one after another, so that the largest of them never leaves its lane. Keys stream
past queries; powers of scores lie as weights do, so that values stream past them, and ones behind these, which make the
sums that outputs are divided by.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Sequence
from functools import partial
from itertools import product

from tpusim.base.words import counted
from tpusim.machines.tpu.cut.attention import RESULTS, RUNNING, SCORES, AttentionPlan, planned
from tpusim.machines.tpu.cut.blocks import CHANNEL, IMAGE, portions
from tpusim.machines.tpu.description import Hardware
from tpusim.machines.tpu.lowering.drafts import Draft, Lowering, one_draft
from tpusim.machines.tpu.lowering.flash_gradient import gradient_ways
from tpusim.machines.tpu.lowering.heads import HeadUnits, HeadWork, explained
from tpusim.machines.tpu.lowering.vector import IGNORED, feed, in_turn
from tpusim.machines.tpu.program.program import Explanation
from tpusim.machines.tpu.program.steps import Vector
from tpusim.machines.tpu.program.transfers import Along, Part
from tpusim.machines.tpu.schedule.units import (
    Act,
    Area,
    Moves,
    Pass,
    Policy,
    SlotNeed,
    Touch,
    Unit,
    VectorWork,
    in_one,
    when_free,
)
from tpusim.memory.hbm_layout import Box
from tpusim.network.ops.flash_attention import (
    KEYS,
    LAST,
    NUMBERS,
    ONE,
    QUERIES,
    VALUES,
    FlashAttention,
    FlashAttentionGradient,
)
from tpusim.network.ops.op import OFMAP


class AttentionUnits(HeadUnits):
    """Head by head and block by block the parts that queries see: scores, their powers, and products with values.

    Raises CapacityError as `planned`.
    """

    def __init__(self, plan: AttentionPlan) -> None:
        super().__init__(plan)
        self.plan = plan
        self.policy = Policy((QUERIES, KEYS, VALUES, NUMBERS, LAST), when_free, 1)

    @property
    def areas(self) -> tuple[Area, ...]:
        plan, lanes = self.plan, self.plan.lanes
        return self.held(
            {
                QUERIES: ("ifmap", lanes, in_one(partial(self.in_lanes, "ifmap"))),
                KEYS: (KEYS, len(plan.chunks[0]), in_one(self._keys)),
                VALUES: (VALUES, min(plan.tile, plan.part), in_one(self._values, 2)),
                NUMBERS: (NUMBERS, lanes, in_one(lambda part, base: [self.numbers(plan.parts[part], base)])),
                LAST: (LAST, lanes, in_one(self.last)),
            }
        )

    def units(self) -> Iterator[Unit]:
        plan, layer = self.plan, self.layer
        shared, tiles, arrays = layer.heads // layer.of_kv_heads, -(-plan.part // plan.tile), plan.hardware.array.queues
        for image, head, (block, folds) in product(range(plan.sequences), range(layer.heads), enumerate(plan.blocks)):
            asking, parts = (image, head, block), plan.seen(block)
            queries, results = SlotNeed(QUERIES, asking), SlotNeed(RESULTS, asking)
            for part in range(parts):
                of, asked = HeadWork(image, head, block, SCORES, part), (image, head // shared, part)
                scores, last, count = SlotNeed(SCORES, (asking, part)), part == parts - 1, len(folds)
                # Of arrays with weights of their own, each takes the passes of a fold in turn.
                for fold in range(count):
                    about, array = of._replace(fold=fold), fold % arrays
                    yield Unit(
                        (queries, SlotNeed(KEYS, asked), scores),
                        None,
                        about,
                        len(plan.chunks),
                        gap=not fold,
                        array=array,
                    )
                needs = [scores, SlotNeed(RUNNING, 0)]
                needs += [results] if part else []
                needs += [SlotNeed(NUMBERS, part), SlotNeed(LAST, block)] if plan.masked(block, part) else []
                steps = 3 * count + 2 * len([*plan.levels(plan.words_of(len(plan.parts[part])))]) + 3
                yield Unit(tuple(needs), None, of._replace(work=RUNNING), steps=steps, gap=False)
                for fold in range(count):
                    about, array, ends = of._replace(fold=fold, work=VALUES), fold % arrays, last and fold == count - 1
                    yield Unit(
                        (scores, SlotNeed(VALUES, asked), results), None, about, tiles, 2 * count * ends,
                        leaves=2 if ends else -1, gap=not fold, array=array,
                    )  # fmt: skip

    # ---- into the lanes

    def _keys(self, key: tuple[int, int, int], base: int) -> Iterator[Moves]:
        image, head, part = key
        yield self.streamed(KEYS, self.asked(image, self.plan.parts[part]), head, base, self.plan.part_words)

    def _values(self, key: tuple[int, int, int], base: int) -> Iterator[Moves]:
        """Values tile by tile, and a word of ones behind the words of each."""
        (image, head, part), plan = key, self.plan
        tokens, items, ones = (
            self.asked(image, self.plan.parts[part]),
            Along(CHANNEL, self.of_head(head)),
            Along(CHANNEL, (0,) * plan.word),
        )
        tiles = [
            Part(
                base + at * plan.output_words,
                (0,),
                (Along(IMAGE, tokens[tile.start : tile.stop]),),
                (items,),
                plan.word,
            )
            for at, tile in enumerate(portions(len(tokens), plan.tile))
        ]
        yield self.of_tokens(VALUES, tokens, head, tiles)
        behind = [
            each._replace(base=each.base + plan.head_words, lane=(Along(IMAGE, (0,) * each.lanes),), items=(ones,))
            for each in tiles
        ]
        yield self.traffic.moves(self.named[ONE], tuple(behind), (Box(*[range(1)] * 4),))

    # ---- the array and the vector unit, and out

    def alike(self, unit: Unit) -> Hashable:
        """Units of all heads do alike."""
        kind: Hashable = unit.about[2:]
        return kind

    def acts(self, unit: Unit, bases: Sequence[int]) -> Iterator[Act]:
        place = {need.area: at for at, need in enumerate(unit.needs)}
        acts = {SCORES: self._score, RUNNING: self._raise, VALUES: self._sum}[unit.about.work]
        return acts(unit.about, place, {area: bases[at] for area, at in place.items()})

    def _score(self, of: HeadWork, place: dict[str, int], base: dict[str, int]) -> Iterator[Act]:
        """Keys stream past the queries of a fold."""
        plan, fold, words = self.plan, of.fold, self.plan.words_of(len(self.plan.parts[of.part]))
        for at, chunk in enumerate(plan.chunks):
            weights = base[QUERIES] + fold * plan.head_words + chunk.start // plan.word
            yield Pass(
                Touch(place[QUERIES]), Touch(place[KEYS]), place[SCORES], at == 0, weights, plan.words_of(len(chunk)),
                len(chunk), plan.lanes, feed(len(chunk), in_turn(base[KEYS] + at * plan.part_words, words)),
                base[SCORES] + fold * plan.part_words, words,
            )  # fmt: skip

    def _raise(self, of: HeadWork, place: dict[str, int], base: dict[str, int]) -> Iterator[Act]:
        """Find the largest score of each query so far, scale its outputs anew, and make powers of its scores."""
        plan, blocks = self.plan, self.plan.blocks[of.block]
        folds, words = len(blocks), plan.words_of(len(plan.parts[of.part]))
        now, before, mine, factor, joined = (base[RUNNING] + at * folds for at in range(5))
        # For the next part, the largest score so far is the one before.
        now, before = (before, now) if of.part % 2 else (now, before)

        def of_folds(name: str, to: int, *operands: int, coefficients: tuple[float, ...] = ()) -> Vector:
            walks = [in_turn(at, folds) for at in operands]
            return self.step(name, walks, in_turn(to, folds), coefficients=coefficients)

        def by_fold(name: str, area: str, apart: int, size: int, number: int) -> Iterator[Vector]:
            for fold in range(folds):
                walk = in_turn(base[area] + fold * apart, size)
                yield self.step(name, [walk], walk, number + fold)

        steps: list[Vector] = []
        for at, fold in enumerate(blocks):
            if NUMBERS in base and (clear := plan.clear(fold, of.part)) < words:
                both = base[SCORES] + at * plan.part_words, base[NUMBERS]
                walks = [in_turn(each + clear, words - clear) for each in both]
                steps.append(self.step("wide_seen", walks, walks[0], base[LAST] + at))
        joining, first = self.in_a_word("wide_maximum", (base[SCORES],), plan.part_words, words, joined, folds)
        steps += joining
        steps.append(of_folds("wide_maximum_across", mine if of.part else now, first, coefficients=(plan.word,)))
        yield VectorWork(steps, tuple(Touch(at) for area, at in place.items() if area in (SCORES, NUMBERS, LAST)))
        if of.part:
            # Outputs come ahead of powers, since passes that add to outputs wait for powers alone.
            steps = [of_folds("wide_maximum", now, mine, before), of_folds("wide_exp", factor, before, now)]
            steps += by_fold("wide_mul", RESULTS, plan.output_words, plan.output_words, factor)
            yield VectorWork(steps, (Touch(place[RESULTS]),), place[RESULTS])
        steps = [*by_fold("wide_exp", SCORES, plan.part_words, words, now)]
        yield VectorWork(steps, (Touch(place[SCORES], ()),), place[SCORES])

    def _sum(self, of: HeadWork, place: dict[str, int], base: dict[str, int]) -> Iterator[Act]:
        """Values and ones stream past the powers of a fold; in the end, what the ones have made divides all outputs."""
        plan, fold, size = self.plan, of.fold, self.plan.output_words
        for at, tile in enumerate(portions(len(plan.parts[of.part]), plan.tile)):
            weights = base[SCORES] + fold * plan.part_words + tile.start // plan.word
            yield Pass(
                Touch(place[SCORES]), Touch(place[VALUES]), place[RESULTS], of.part == at == 0, weights,
                plan.words_of(len(tile)), len(tile), plan.lanes,
                feed(len(tile), in_turn(base[VALUES] + at * size, size)), base[RESULTS] + fold * size, size,
            )  # fmt: skip
        folds = len(plan.blocks[of.block])
        if of.part == plan.seen(of.block) - 1 and fold == folds - 1:
            steps: list[Vector] = []
            for fold in range(folds):
                first = base[RESULTS] + fold * size
                outputs, total = in_turn(first, plan.head_words), in_turn(first + plan.head_words, 1)
                steps.append(self.step("reciprocal_sum", [total], total))
                steps.append(self.step("mul", [outputs], outputs, first + plan.head_words))
            yield VectorWork(steps, (Touch(place[RESULTS]),), place[RESULTS])

    def spill(self, unit: Unit, base: int) -> Moves:
        of, plan = unit.about, self.plan
        items = (Along(CHANNEL, self.of_head(of.head)),)
        parts = [
            Part(base + at * plan.output_words, (0,), (Along(IMAGE, self.asking(of.image, fold)),), items, plan.word)
            for at, fold in enumerate(plan.blocks[of.block])
        ]
        return self.of_tokens(OFMAP, self.of_block(of.image, of.block), of.head, parts)


# ---- the lowering


def ways(layer: FlashAttention, batch: int, hardware: Hardware) -> list[Draft]:
    """The only draft of an attention, or of its gradients. Raises as `planned` and `gradient_planned`."""
    if isinstance(layer, FlashAttentionGradient):
        return gradient_ways(layer, batch, hardware)
    plan = planned(layer, batch, hardware)
    return one_draft(AttentionUnits(plan), lambda _: _explained(plan), lambda: plan.cycles)


def _explained(plan: AttentionPlan) -> Explanation:
    pairs, every = sum(map(plan.seen, range(len(plan.blocks)))), len(plan.blocks) * len(plan.parts)
    tiles = f", a query a column; {counted(len(plan.chunks), 'row fold')} for {plan.layer.head} elements of a head; "
    return explained(
        plan,
        {"block": plan.block, "part": plan.part},
        tiles=f"{tiles}{counted(-(-plan.part // plan.tile), 'tile')} of keys, a key a row",
        passes="keys stream past queries; values, and ones behind them, stream past powers of scores",
        chunks=f"{plan.part} keys at a time; of {every} pairs of a block and such a part {pairs} are computed",
        parts=len(plan.parts),
        vector="the largest score so far, outputs scaled anew, powers of scores; the array waits meanwhile",
        order="head by head, block by block, part by part",
    )


FLASH_ATTENTION = Lowering(
    "flash_attention",
    "attention whose scores stay on chip, by blocks of queries and parts of the keys",
    ways,
    whole_rows=True,
    partial=True,
    carries=frozenset(),
    ignores=IGNORED - {"block.in_channels"} | {"block.rows", "block.cols", "block.out_channels", "block_n", "strips"},
)
