"""The gradients of an attention by blocks of its queries, whose scores stay on chip.

A lane has a query of a fold, and all its scores, one after another. Keys stream past queries, and values past the
gradients of outputs. The vector unit makes shares of the scores, and gradients by scores of both. These lie as they are
needed: they stream past the gradients of outputs and past queries, which then have a channel in each column, and make
the gradients by values and keys; and as weights, past which keys stream, they make those by queries.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Sequence
from functools import cached_property, partial
from itertools import product

from tpusim.base.words import counted
from tpusim.machines.tpu.cut.attention import (
    BY_KEYS,
    BY_VALUES,
    KEYS_ALONG,
    OUTGOING,
    OUTGOING_ACROSS,
    QUERIES_ACROSS,
    RESULTS,
    RUNNING,
    SHARES,
    SLOPES,
    GradientPlan,
    gradient_planned,
)
from tpusim.machines.tpu.cut.blocks import CHANNEL, IMAGE
from tpusim.machines.tpu.description import Hardware
from tpusim.machines.tpu.lowering.drafts import Draft, one_draft
from tpusim.machines.tpu.lowering.heads import HeadUnits, HeadWork, explained
from tpusim.machines.tpu.lowering.vector import feed, in_turn
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
from tpusim.network.ops.flash_attention import KEYS, LAST, NUMBERS, QUERIES, VALUES, FlashAttentionGradient
from tpusim.network.ops.op import OFMAP


class GradientUnits(HeadUnits):
    """Head by head and block by block: scores, gradients of shares, steps on these, and three products of them.

    Raises CapacityError as `gradient_planned`.
    """

    def __init__(self, plan: GradientPlan) -> None:
        super().__init__(plan)
        self.plan = plan
        order = QUERIES, KEYS, OUTGOING, VALUES, NUMBERS, LAST, OUTGOING_ACROSS, QUERIES_ACROSS, KEYS_ALONG
        self.policy = Policy(order, when_free, 1)

    @cached_property
    def shared(self) -> int:
        """Heads that share keys and values."""
        return self.layer.heads // self.layer.of_kv_heads

    @property
    def areas(self) -> tuple[Area, ...]:
        plan, lanes = self.plan, self.plan.lanes
        chunk, column = len(plan.chunks[0]), len(plan.columns[0])
        made = OFMAP, column, None
        return self.held({
            QUERIES: (QUERIES, lanes, in_one(partial(self.in_lanes, QUERIES))),
            OUTGOING: ("ifmap", lanes, in_one(partial(self.in_lanes, "ifmap"))),
            KEYS: (KEYS, chunk, in_one(partial(self._streamed, KEYS))),
            VALUES: (VALUES, chunk, in_one(partial(self._streamed, VALUES))),
            NUMBERS: (NUMBERS, lanes, in_one(self._numbers)),
            LAST: (LAST, lanes, in_one(self.last)),
            OUTGOING_ACROSS: ("ifmap", column, in_one(partial(self._across, "ifmap"))),
            QUERIES_ACROSS: (QUERIES, column, in_one(partial(self._across, QUERIES))),
            KEYS_ALONG: (KEYS, len(plan.tiles[0]), in_one(self._along)),
            BY_KEYS: made, BY_VALUES: made,
        })  # fmt: skip

    def units(self) -> Iterator[Unit]:
        plan, layer, queues = self.plan, self.layer, self.plan.hardware.array.queues
        every = range(len(plan.blocks))
        for image, head, block in product(range(plan.sequences), range(layer.heads), every):
            asking, asked = (image, head, block), (image, head // self.shared)
            folds = range(len(plan.blocks[block]))
            ends = block == every[-1] and head % self.shared == self.shared - 1
            shares = [SlotNeed(SHARES, (*asking, fold)) for fold in folds]
            slopes = [SlotNeed(SLOPES, (*asking, fold)) for fold in folds]
            for work, data, weights, made in ((SHARES, KEYS, QUERIES, shares), (SLOPES, VALUES, OUTGOING, slopes)):
                for fold in folds:
                    brought = SlotNeed(weights, asking), SlotNeed(data, asked)
                    about = HeadWork(*asking, work, fold=fold)
                    yield Unit((*brought, made[fold]), None, about, len(plan.chunks), gap=not fold, array=fold % queues)
            for fold in folds:
                seen = [SlotNeed(NUMBERS, block), SlotNeed(LAST, block)] if plan.masks(block) else []
                both = shares[fold], slopes[fold]
                about = HeadWork(*asking, RUNNING, fold=fold)
                yield Unit((*both, SlotNeed(RUNNING, 0), *seen), None, about, steps=self._steps[block], gap=not fold)
            for part in range(plan.arrays):
                for work, weights, made in (
                    (BY_VALUES, OUTGOING_ACROSS, shares),
                    (BY_KEYS, QUERIES_ACROSS, slopes),
                ):
                    needs = SlotNeed(work, (*asked, part)), SlotNeed(weights, asking)
                    about = HeadWork(*asking, work, part)
                    passes = sum(len([*self._runs(block, fold, part, head)]) for fold in folds) * len(plan.columns)
                    yield Unit(
                        (*needs, *made),
                        None,
                        about,
                        passes,
                        leaves=0 if ends else -1,
                        gap=not part,
                        array=part % queues,
                    )
            for fold in folds:
                results, keys = SlotNeed(RESULTS, (*asking, fold)), SlotNeed(KEYS_ALONG, asked)
                about = HeadWork(*asking, RESULTS, fold=fold)
                tiles = len([*self._tiles(block)])
                yield Unit(
                    (results, slopes[fold], keys), None, about, tiles, leaves=0, gap=not fold, array=fold % queues
                )

    # ---- into the lanes

    def _streamed(self, name: str, key: tuple[int, int], base: int) -> Iterator[Moves]:
        image, head = key
        tokens = self.asked(image, range(self.layer.of_keys))
        yield self.streamed(name, tokens, head, base, self.plan.key_words)

    def _across(self, name: str, key: tuple[int, int, int], base: int) -> Iterator[Moves]:
        """The elements of a head of the queries of a block, a channel a lane, by columns and then by folds."""
        (image, head, block), plan = key, self.plan
        folds, channels = plan.blocks[block], self.of_head(head)
        parts = [
            Part(
                base + (at * len(folds) + number) * plan.fold_words,
                (0,),
                (Along(CHANNEL, channels[column.start : column.stop]),),
                (Along(IMAGE, self.asking(image, fold)),),
                plan.word,
            )
            for at, column in enumerate(plan.columns)
            for number, fold in enumerate(folds)
        ]
        yield self.of_tokens(name, self.of_block(image, block), head, parts)

    def _along(self, key: tuple[int, int], base: int) -> Iterator[Moves]:
        """All keys of a sequence, a key a lane, tile by tile."""
        (image, head), plan = key, self.plan
        items = Along(CHANNEL, self.of_head(head))
        parts = [
            Part(base + at * plan.head_words, (0,), (Along(IMAGE, self.asked(image, tile)),), (items,), plan.word)
            for at, tile in enumerate(plan.tiles)
        ]
        yield self.of_tokens(KEYS, self.asked(image, range(self.layer.of_keys)), head, parts)

    def _numbers(self, block: int, base: int) -> Iterator[Moves]:
        """The numbers of the keys that not every query of a block sees."""
        plan = self.plan
        first, last = plan.clear(plan.blocks[block][0]) * plan.word, plan.seen(block) * plan.word
        yield self.numbers(range(first, min(last, self.layer.of_keys)), base)

    # ---- the array and the vector unit, and out

    def alike(self, unit: Unit) -> Hashable:
        """Units of all heads do alike, but that the first head that reads some keys begins their sums."""
        of: HeadWork = unit.about
        return of.block, of.work, of.part, of.fold, of.work in (BY_KEYS, BY_VALUES) and of.head % self.shared == 0

    def acts(self, unit: Unit, bases: Sequence[int]) -> Iterator[Act]:
        of: HeadWork = unit.about
        does: dict[str, Callable[[HeadWork, Sequence[int]], Iterator[Act]]] = {
            SHARES: self._scores, SLOPES: self._scores, RUNNING: self._slopes,
            BY_VALUES: self._by_keys, BY_KEYS: self._by_keys, RESULTS: self._by_queries,
        }  # fmt: skip
        return does[of.work](of, bases)

    def _scores(self, of: HeadWork, bases: Sequence[int]) -> Iterator[Act]:
        """Keys stream past the queries of a fold, or values past the gradients of its outputs."""
        plan, words = self.plan, self.plan.seen(of.block)
        weights, data, made = bases
        for at, chunk in enumerate(plan.chunks):
            first = weights + of.fold * plan.head_words + chunk.start // plan.word
            yield Pass(
                Touch(0), Touch(1), 2, at == 0, first, plan.words_of(len(chunk)), len(chunk), plan.lanes,
                feed(len(chunk), in_turn(data + at * plan.key_words, words)), made, words,
            )  # fmt: skip

    @cached_property
    def _steps(self) -> list[int]:
        """For each block the number of steps of `_slopes` of its first fold, which has most."""
        needs = [range(5 if self.plan.masks(block) else 3) for block in range(len(self.plan.blocks))]
        works = ([*self._slopes(HeadWork(0, 0, block, RUNNING), each)] for block, each in enumerate(needs))
        return [sum(len(act.steps) for act in work) for work in works]

    def _slopes(self, of: HeadWork, bases: Sequence[int]) -> Iterator[VectorWork]:
        """Shares of keys from scores, and gradients by scores from those of shares: less their mean by the shares, and
        times these.
        """
        plan, words, fold = self.plan, self.plan.seen(of.block), self.plan.blocks[of.block][of.fold]
        shares, slopes, running, *seen = bases
        most, total, mean, free = (running + at for at in range(4))

        def worked(name: str, walks: Sequence[int], number: int) -> Vector:
            every = [in_turn(at, words) for at in walks]
            return self.step(name, every, every[0], number)

        def to_a_word(name: str, firsts: Sequence[int], to: int, across: str, first: str = "") -> list[Vector]:
            steps, made = self.in_a_word(name, firsts, 0, words, free, 1, first)
            one = [in_turn(made, 1)], in_turn(to, 1)
            return [*steps, self.step(across, *one, coefficients=(plan.word,))]

        steps: list[Vector] = []
        if seen and (clear := plan.clear(fold)) < words:
            numbers, last = seen
            at = shares + clear, numbers + clear - plan.clear(plan.blocks[of.block][0])
            walks = [in_turn(each, words - clear) for each in at]
            steps.append(self.step("wide_seen", walks, walks[0], last + of.fold))
        steps += to_a_word("wide_maximum", (shares,), most, "wide_maximum_across")
        steps.append(worked("wide_exp", (shares,), most))
        steps += to_a_word("wide_add", (shares,), total, "wide_sum_across")
        steps.append(self.step("wide_reciprocal_sum", [in_turn(total, 1)], in_turn(total, 1)))
        steps.append(worked("wide_mul", (shares,), total))
        yield VectorWork(steps, (Touch(0), *(Touch(3 + at) for at in range(len(seen)))), 0)
        steps = to_a_word("wide_add", (shares, slopes), mean, "wide_sum_across", "wide_sum_of_products")
        steps.append(worked("wide_shares_less", (slopes, shares), mean))
        yield VectorWork(steps, (Touch(1), Touch(0)), 1)

    def _stretches(self, part: int) -> Iterator[tuple[int, range]]:
        """The words of each stretch of an array, and where its sums begin in their slot."""
        plan, at = self.plan, 0
        for stretch in plan.stretches[part :: plan.arrays]:
            words = plan.words_of(len(stretch))
            first = stretch.start // plan.word
            yield at, range(first, first + words)
            at += words

    def _runs(self, block: int, fold: int, part: int, head: int) -> Iterator[tuple[int, range, bool]]:
        """Runs of words of keys that a fold adds to the sums of an array: where these are, the words, and whether no
        query before has seen them.
        """
        plan = self.plan
        first = head % self.shared == 0 and fold == 0
        before = plan.seen(block - 1) if first else plan.key_words
        for at, words in self._stretches(part):
            edge = min(max(before, words.start), words.stop)
            known, fresh = range(words.start, edge), range(edge, words.stop)
            for run, begins in ((known, False), (fresh, True)):
                if seen := range(run.start, min(run.stop, plan.seen(block))):
                    yield at + seen.start - words.start, seen, begins

    def _by_keys(self, of: HeadWork, bases: Sequence[int]) -> Iterator[Act]:
        """Shares stream past the gradients of outputs, or gradients by scores past queries: sums over queries."""
        plan, folds = self.plan, self.plan.blocks[of.block]
        made, weights, *data = bases
        for (number, fold), (at, column) in product(enumerate(folds), enumerate(plan.columns)):
            first = weights + (at * len(folds) + number) * plan.fold_words
            for to, run, begins in self._runs(of.block, number, of.part, of.head):
                yield Pass(
                    Touch(1), Touch(2 + number), 0, begins, first, plan.words_of(len(fold)), len(fold), len(column),
                    feed(len(fold), in_turn(data[number] + run.start, len(run))),
                    made + at * plan.stretch_words + to, len(run),
                )  # fmt: skip

    def _tiles(self, block: int) -> Iterator[range]:
        """The keys that queries of a block see, a tile at a time."""
        seen = min(self.plan.seen(block) * self.plan.word, self.layer.of_keys)
        for tile in self.plan.tiles:
            if tile.start < seen:
                yield range(tile.start, min(tile.stop, seen))

    def _by_queries(self, of: HeadWork, bases: Sequence[int]) -> Iterator[Act]:
        """Keys stream past the gradients by the scores of a fold: sums over keys."""
        plan, size = self.plan, self.plan.head_words
        made, weights, data = bases
        for at, tile in enumerate(self._tiles(of.block)):
            yield Pass(
                Touch(1), Touch(2), 0, at == 0, weights + tile.start // plan.word, plan.words_of(len(tile)), len(tile),
                plan.lanes, feed(len(tile), in_turn(data + at * size, size)), made, size,
            )  # fmt: skip

    def spill(self, unit: Unit, base: int) -> Moves:
        of, plan = unit.about, self.plan
        if of.work == RESULTS:
            queries = self.asking(of.image, plan.blocks[of.block][of.fold])
            parts = [Part(base, (0,), (Along(IMAGE, queries),), (Along(CHANNEL, self.of_head(of.head)),), plan.word)]
            return self.of_tokens(OFMAP, queries, of.head, parts)
        # The heads of keys come behind those of queries, and those of values behind these.
        head = self.layer.heads + of.head // self.shared + (of.work == BY_VALUES) * self.layer.of_kv_heads
        channels = self.of_head(head)
        parts, boxes = list[Part](), list[Box]()
        for number, (to, _) in enumerate(self._stretches(of.part)):
            tokens = self.asked(of.image, plan.stretches[of.part + number * plan.arrays])
            boxes.append(Box(channels, range(1), range(1), tokens))
            parts += [
                Part(base + at * plan.stretch_words + to, (0,), (Along(CHANNEL, channels[column.start : column.stop]),),
                     (Along(IMAGE, tokens),), plan.word)
                for at, column in enumerate(plan.columns)
            ]  # fmt: skip
        return self.traffic.moves(self.named[OFMAP], tuple(parts), boxes)


def gradient_ways(layer: FlashAttentionGradient, batch: int, hardware: Hardware) -> list[Draft]:
    """The only draft of the gradients of an attention. Raises as `gradient_planned`."""
    plan = gradient_planned(layer, batch, hardware)
    return one_draft(GradientUnits(plan), lambda _: _explained(plan), lambda: plan.cycles)


def _explained(plan: GradientPlan) -> Explanation:
    tiles = f"; {counted(len(plan.chunks), 'row fold')} for {plan.layer.head} elements of a head; "
    return explained(
        plan,
        {"block": plan.block},
        tiles=f"{tiles}{counted(len(plan.tiles), 'tile')} of keys",
        passes="keys stream past queries, and values past gradients of outputs; shares stream past these, and "
        "gradients by scores past queries; keys stream past gradients by scores",
        vector="shares of the scores, the mean of their gradients, gradients by scores",
        order="head by head, block by block, all keys that a block sees",
    )
