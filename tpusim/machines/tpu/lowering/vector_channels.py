"""Sums over the pixels and images of each channel, by the vector unit: statistics, and gradients of biases and scales.

A lane has a channel, whose words it joins piece by piece to one: a sum for each element of a word. These change places
by way of HBM, once for all channels, and are joined in their lane. Words have as many images as divide the batch, so
that no element is padding. Few channels have several lanes each, with equal shares of their rows. Where tensors lie so
that lanes are padded least, it may be the other way round: images in lanes, and channels in words.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from fractions import Fraction
from itertools import pairwise, product
from math import prod
from typing import NamedTuple

from tpusim.base.words import counted
from tpusim.machines.tpu.cut.blocks import CHANNEL, COL, IMAGE, ROW, Block, halves, portions
from tpusim.machines.tpu.cut.tiling import fitting, op_delay
from tpusim.machines.tpu.cut.traffic import Traffic, Turn
from tpusim.machines.tpu.definition import body_share
from tpusim.machines.tpu.description import Hardware
from tpusim.machines.tpu.lowering.drafts import Draft, Lowering, memory_of, one_draft
from tpusim.machines.tpu.lowering.vector import (
    IGNORED,
    IMAGES_IN_LANES,
    in_turn,
    joining_steps,
    lane_step,
    least_padded,
    tiled,
)
from tpusim.machines.tpu.program.operations import OPERATIONS
from tpusim.machines.tpu.program.program import Explanation
from tpusim.machines.tpu.program.steps import Vector
from tpusim.machines.tpu.program.tensors import Tensor
from tpusim.machines.tpu.program.transfers import Along, Part
from tpusim.machines.tpu.schedule.units import (
    Area,
    Moves,
    Piece,
    Policy,
    SlotNeed,
    Touch,
    Unit,
    Units,
    VectorWork,
    at_once,
    in_one,
    when_needed,
    with_the_one_ahead,
)
from tpusim.memory.hbm_layout import Box, shifted
from tpusim.network.ops.channels import ChannelSum
from tpusim.network.ops.op import OFMAP
from tpusim.result.records import Blocking

ENOUGH_PIECES = 16
"""Pieces of a layer that are enough for loads to hide work: but for the last one, a sixteenth of it."""
EXCHANGED = "exchanged"
"""Name of the tensor by which the elements of words change places."""
MOST_TOGETHER = 64
"""Most portions of channels whose elements change places together."""


def ways(layer: ChannelSum, batch: int, hardware: Hardware) -> list[Draft]:
    """The only draft of an op of channels.

    Raises:
        CapacityError: when nothing fits the vector memories.
    """
    work = ChannelUnits(layer, batch, hardware)
    return one_draft(work, lambda _: _explained(work))


class PixelRun(NamedTuple):
    """A piece of a portion of the channels; or, without a piece, the end of a portion. Portions have numbers."""

    portion: int
    piece: int = -1


class ChannelUnits(Units):
    """A lane has a channel at a time, and words have images of a pixel; or, turned, lanes have images, and a word some
    channels of a pixel.

    Attributes:
        maps: sources that are summed up, element by element.
        numbers: sources of a number for each channel; kinds: the sums.
        word_fill, groups: elements of a word, and words of a pixel in a lane for the same channels.
        shares, high: lanes of a channel, and the rows of each; sums: numbers of a channel that change places.
        images: images in lanes; 0 unless turned.
        portions, ends, rounds: channels that are summed up at a time; those that are told at a time, as many as there
            are lanes; and ends whose elements change places together.
        pieces: blocks of a map, as few as leave room for the next one, but enough for loads to hide work.

    Raises:
        CapacityError: when not even a word at a time fits; says how much memory would do.
    """

    policy = Policy(("given", "maps", "exchanged"), at_once, by_area=True)

    def __init__(self, layer: ChannelSum, batch: int, hardware: Hardware) -> None:
        self.layer, self.hardware, self.traffic = layer, hardware, Traffic(hardware)
        self.ending, shapes = layer.ends(batch), layer.shapes(batch)
        channels, rows, self.wide, images = shapes["ifmap"]
        turn, elements = (
            least_padded([Turn(), IMAGES_IN_LANES], shapes["ifmap"], hardware),
            hardware.vector_memory.word_elements,
        )
        apart = _divisor(images, hardware.lanes) if turn == IMAGES_IN_LANES else 0
        self.images = apart if apart > 1 else 0
        self.word_fill = _divisor(channels if self.images else images, elements)
        self.groups, self.kinds = images // (self.images or self.word_fill), layer.sums
        self.maps = "ifmap", *(name for name, kind in layer.beside.items() if kind == "each")
        self.numbers = tuple(name for name in layer.beside if name not in self.maps)
        # Elements that a step joins at most: one for each scalar of a lane, but at least two.
        room = hardware.vector_unit.scalar_words * hardware.vector_memory.word_elements
        self.most, self.first = max(2, room), max(1, (room - len(self.numbers)) // len(self.maps))
        # Shares cost nothing where words have sums that change places anyway.
        lanes = min(hardware.lanes // channels, self.most // self.word_fill) if self.word_fill > 1 else 1
        self.shares = 1 if self.images else _divisor(rows, max(1, lanes))
        self.high, self.sums = rows // self.shares, self.images or self.shares * self.word_fill
        self.ends = portions(channels, hardware.lanes)
        self.portions = portions(channels, self.word_fill) if self.images else self.ends
        self.rounds = portions(len(self.ends), MOST_TOGETHER)
        self.named = {name: self._tensor(name, shape) for name, shape in shapes.items()}
        if self.sums > 1:
            self.named[EXCHANGED] = Tensor(EXCHANGED, (channels, len(self.kinds), 1, self.sums), exchanged=True)
            self.intermediates = channels * len(self.kinds) * self.sums
        self.tensors = (*self.named.values(),)
        fits = [*fitting(self._sizes(), lambda size: self._words(prod(size)), hardware)]
        enough = (size for size in fits if len(self._pieces(size)) * len(self.portions) >= ENOUGH_PIECES)
        self.pieces = self._pieces(next(enough, fits[-1]))

    def _tensor(self, name: str, shape: tuple[int, int, int, int]) -> Tensor:
        wide = self.hardware.hbm.channel_multiple if name in self.maps else 1
        return tiled(name, shape, wide, IMAGE if self.images else CHANNEL)

    # ---- pieces, and their places

    def _sizes(self) -> Iterator[tuple[int, int, int]]:
        """Rows, columns and word groups of a piece: rows are cut first."""
        yield from ((rows, self.wide, self.groups) for rows in halves(self.high))
        yield from ((1, cols, self.groups) for cols in halves(self.wide)[1:])
        yield from ((1, 1, groups) for groups in halves(self.groups)[1:])

    def _pieces(self, size: tuple[int, int, int]) -> list[Block]:
        every = zip((self.high, self.wide, self.groups), size, strict=True)
        return [Block(*each) for each in product(*(portions(extent, part) for extent, part in every))]

    def _levels(self, words: int) -> list[int]:
        """Numbers of words, step by step: those that pieces are joined to, until a step joins all with the sum so
        far.
        """
        first = -(-words // self.first)
        return [first, *self._joined_to(first, self.most - 1)]

    def _joined_to(self, words: int, most: int) -> list[int]:
        """Numbers of words that some words are joined to, step by step, until there are `most` at most."""
        found = list[int]()
        while words > most:
            words = -(-words // self.most)
            found.append(words)
        return found

    def _words(self, size: int) -> int:
        return sum(each.count * each.words for each in self._areas(size))

    @property
    def areas(self) -> tuple[Area, ...]:
        """Areas for maps, given numbers, numbers to be joined, sums of elements, those that change places, and
        results.
        """
        return self._areas(max(piece.words for piece in self.pieces))

    def _areas(self, size: int) -> tuple[Area, ...]:
        twice, ends = min(2, len(self.portions)), (min(2, len(self.ends)), len(self.ends[0]))
        lanes = self.images or ends[1] * self.shares
        joined = max(sum(self._levels(size)), sum(self._joined_to(self.sums, self.most)))

        def ready(of: PixelRun) -> int:
            return op_delay(self.pieces[of.piece].words * len(self.maps), self.hardware)

        kinds, numbers = len(self.kinds), len(self.numbers)
        maps, given = in_one(self._brought, len(self.maps)), in_one(self._given, max(1, numbers))
        exchanged = kinds * self.sums * len(self.rounds[0]) if self.sums > 1 else 0
        return (
            Area("maps", "ifmap", size * len(self.maps), 2, lanes, maps, ready),
            Area("joined", OFMAP, joined, 1, max(lanes, ends[1])),
            Area("given", OFMAP, numbers, twice * (numbers > 0), lanes, given, gaps=with_the_one_ahead),
            Area("sums", OFMAP, kinds, twice, lanes),
            Area("exchanged", OFMAP, exchanged, int(exchanged > 0), ends[1], self._exchanged, gaps=when_needed),
            Area("results", OFMAP, kinds, *ends),
        )

    def units(self) -> Iterator[Unit]:
        alone, last, kinds = self.sums == 1, len(self.pieces) - 1, len(self.kinds)
        after = kinds * (2 * len(self._joined_to(self.sums, self.most)) + 1)
        for part in self.rounds:
            channels = self._of_ends(part)
            begun = (u for u, portion in enumerate(self.portions) if portion.start in channels)
            for u, p in product(begun, range(last + 1)):
                of = PixelRun(u, p)
                needs = [SlotNeed("joined", 0), SlotNeed("sums", u), SlotNeed("maps", of)]
                needs += [SlotNeed("given", u)] if self.numbers else []
                needs += [SlotNeed("results", u)] if alone and p == last else []
                steps, leaves = (
                    1 + kinds * (2 * len(self._levels(self.pieces[p].words)) + 2),
                    len(needs) - 1 if alone else 1,
                )
                makes = None if alone or p < last else u
                yield Unit(tuple(needs), None, of, steps=steps, leaves=leaves if p == last else -1, makes=makes)
            for u in () if alone else part:
                wanted = ("exchanged", part.start), ("results", u), ("joined", 0)
                needs = [SlotNeed(*each) for each in wanted]
                yield Unit(tuple(needs), None, PixelRun(u), steps=after, leaves=1)

    def _of_ends(self, part: range) -> range:
        """Channels of some ends."""
        return range(self.ends[part.start].start, self.ends[part.stop - 1].stop)

    # ---- loads

    def _lane(self, portion: range, axis: int, apart: int) -> tuple[Along, ...]:
        """Counters of the image of each lane; or of its channel, and its share, which are `apart` along an axis; share
        by share.
        """
        if self.images:
            return (Along(IMAGE, range(self.images)),)
        if self.shares == 1:
            return (Along(CHANNEL, portion),)
        shares = tuple([share * apart for share in range(self.shares) for _ in portion])
        return Along(CHANNEL, (*portion,) * self.shares), Along(axis, shares)

    def _brought(self, of: PixelRun, base: int) -> Iterator[Moves]:
        portion, piece, fill = self.portions[of.portion], self.pieces[of.piece], self.word_fill
        each = self.images or fill
        images = range(piece.groups.start * each, piece.groups.stop * each)
        pixels = Along(ROW, piece.rows), Along(COL, piece.cols), Along(IMAGE, images[::each])
        items = *pixels, Along(CHANNEL, portion) if self.images else Along(IMAGE, range(fill))
        rows = (shifted(piece.rows, share * self.high) for share in range(self.shares))
        boxes = [Box(portion, each, piece.cols, images) for each in rows]
        for at, name in enumerate(self.maps):
            part = Part(base + at * piece.words, (0,), self._lane(portion, ROW, self.high), items, fill)
            yield self.traffic.moves(self.named[name], (part,), boxes)

    def _numbers(self, name: str, portion: range, part: Part) -> Moves:
        """Moves of all numbers of each channel of a portion."""
        _, rows, _, images = self.named[name].shape
        box = Box(portion, range(rows), range(1), range(images))
        return self.traffic.moves(self.named[name], (part,), (box,))

    def _given(self, u: int, base: int) -> Iterator[Moves]:
        """Moves of the numbers of each channel to every element of a word, in all of its lanes."""
        portion, fill = self.portions[u], self.word_fill
        copies = tuple(share * len(portion) for share in range(self.shares))
        for word, name in enumerate(self.numbers, base):
            part = Part(word, copies, (Along(CHANNEL, portion),), (Along(IMAGE, (0,) * fill),), fill)
            if self.images:
                every = (Along(IMAGE, (0,) * self.images),)
                part = Part(word, (0,), every, (Along(CHANNEL, portion),), fill)
            yield self._numbers(name, portion, part)

    def _exchanged(self, first: int, gaps: int, grows: bool) -> list[Piece]:
        """A piece with the sums of a round of ends, one to a word."""
        part = next(each for each in self.rounds if each.start == first)

        def moves(base: int) -> Iterator[Moves]:
            for u in part:
                lane, items = (Along(CHANNEL, self.ends[u]),), (*self._of_kinds, Along(IMAGE, range(self.sums)))
                yield self._numbers(EXCHANGED, self.ends[u], Part(base + self._apart(u), (0,), lane, items, 1))

        channels = self._of_ends(part)
        made = (u for u, each in enumerate(self.portions) if each.start < channels.stop and channels.start < each.stop)
        return [Piece(0, (0,), moves, tuple(SlotNeed("", u) for u in made), steps=len(part))]

    def _apart(self, u: int) -> int:
        """Words of the ends ahead in a round."""
        return u % MOST_TOGETHER * len(self.kinds) * self.sums

    @property
    def _of_kinds(self) -> tuple[Along, ...]:
        """The counter of the sums, where there are several."""
        return (Along(ROW, range(len(self.kinds))),) if len(self.kinds) > 1 else ()

    # ---- work and results

    def acts(self, unit: Unit, bases: Sequence[int]) -> Iterator[VectorWork]:
        place = {need.area: at for at, need in enumerate(unit.needs)}
        base, of = {area: bases[at] for area, at in place.items()}, unit.about
        if of.piece < 0:
            steps = [*self._told(len(self.ends[of.portion]), base["exchanged"] + self._apart(of.portion), base)]
            yield VectorWork(steps, (Touch(place["exchanged"]),), place["results"], True)
            return
        lanes = self.images or len(self.portions[of.portion]) * self.shares
        reads = [Touch(place["maps"]), *([Touch(place["given"])] if self.numbers else [])]
        yield VectorWork([*self._joined(of, lanes, base)], tuple(reads), place["sums"], of.piece == 0)
        if "results" in place:
            steps = [
                self._ended(lanes, range(base["sums"] + kind, base["sums"] + kind + 1), base["results"] + kind)
                for kind in range(len(self.kinds))
            ]
            yield VectorWork(steps, (Touch(place["sums"], ()),), place["results"], True)

    def _told(self, lanes: int, first: int, base: dict[str, int]) -> Iterator[Vector]:
        """Steps that make a channel's number of its sums, which stand from a word on."""
        for kind in range(len(self.kinds)):
            at, words, to = first + kind * self.sums, self.sums, base["joined"]
            for made in self._joined_to(words, self.most):
                yield from joining_steps(lanes, "add", [at], words, self.most, to)
                at, words, to = to, made, to + made
            yield self._ended(lanes, range(at, at + words), base["results"] + kind)

    def _ended(self, lanes: int, words: range, to: int) -> Vector:
        """The step that makes a channel's number of the last words of its sum."""
        operation, coefficients = self.ending
        walks = (in_turn(each, 1) for each in words)
        return lane_step(lanes, operation, walks, in_turn(to, 1), coefficients=coefficients)

    def _joined(self, of: PixelRun, lanes: int, base: dict[str, int]) -> Iterator[Vector]:
        """Steps that join the words of a piece, as many at a time as a step takes, and then add them to the sum."""
        words = self.pieces[of.piece].words
        firsts = [base["maps"] + at * words for at in range(len(self.maps))]
        known = [base["given"] + at for at in range(len(self.numbers))]
        for kind, operation in enumerate(self.kinds, base["sums"]):
            to, levels = base["joined"], self._levels(words)
            body, slots = self._body(operation), self.hardware.vector_unit.slots
            # Pieces are summed up one after another, as if they were one.
            every = sum(piece.words for piece in self.pieces) if slots else 0
            yield from joining_steps(lanes, operation, firsts, words, self.first, to, known, body, chain=every)
            for count, made in pairwise(levels):
                yield from joining_steps(lanes, "add", [to], count, self.most, to + count)
                to += count
                assert made < count
            so_far = [kind] if of.piece else []
            walks = (in_turn(each, 1) for each in (*so_far, *range(to, to + levels[-1])))
            yield lane_step(lanes, "add", walks, in_turn(kind, 1))

    def _body(self, operation: str) -> Fraction:
        """Cycles of each word of a map for what loop bodies take beyond their slots."""
        lanes = self.images or len(self.portions[0]) * self.shares
        words = len(self.portions) * sum(piece.words for piece in self.pieces)
        bare = OPERATIONS[operation].bare and self.hardware.vector_unit.widen == 0
        return body_share(words, lanes, self.hardware, "bare_summed" if bare else "summed")

    def spill(self, unit: Unit, base: int) -> Moves:
        if unit.makes is None:
            portion = self.ends[unit.about.portion]
            part = Part(base, (0,), (Along(CHANNEL, portion),), (*self._of_kinds, Along(IMAGE, range(1))), 1)
            return self._numbers(OFMAP, portion, part)
        portion, fill = self.portions[unit.about.portion], self.word_fill
        lane = self._lane(portion, IMAGE, fill)
        items = Along(CHANNEL, portion) if self.images else Along(IMAGE, range(fill))
        return self._numbers(EXCHANGED, portion, Part(base, (0,), lane, (*self._of_kinds, items), fill))


def _divisor(size: int, most: int) -> int:
    """The largest number up to `most` that divides a size."""
    return next(each for each in range(min(size, most), 0, -1) if size % each == 0)


# ---- in words


def _explained(work: ChannelUnits) -> Explanation:
    size = max(work.pieces, key=lambda piece: piece.words)
    rows, cols, groups = size.sizes
    pieces = len(work.pieces) * len(work.portions)
    blocking = Blocking(
        rows=rows, cols=cols, images=groups * (work.images or work.word_fill), blocks=pieces, row_folds=1, col_folds=1,
        loop_order="block_major", word_fill=work.word_fill, strips=1,
    )  # fmt: skip
    maps, joined, given, sums, exchanged, results = ((each.words * each.count, 0) for each in work.areas)
    areas = {"maps": maps, "sums": (sum(each for each, _ in (joined, given, sums, exchanged)), 0), "results": results}
    word = counted(work.hardware.vector_memory.word_elements, "element")
    turned = "; its elements meet by way of HBM" if work.sums > 1 else ""
    shares = f", in {work.shares} shares of {counted(work.high, 'row')}" if work.shares > 1 else ""
    most = work.word_fill if work.images else work.hardware.lanes
    channels = f"{counted(len(work.portions), 'portion')} of at most {most} channels"
    lanes = "an image a lane" if work.images else f"one a lane{shares}"
    held = "channels as divide all" if work.images else "images as divide the batch"
    operations = " and ".join(work.kinds)
    aspects = {
        "folds": f"{channels}, {lanes}",
        "passes": f"none: the vector unit joins the words of a channel to one, by {operations}{turned}",
        "block": f"{rows} x {cols} pixels of {counted(blocking.images, 'image')}; {counted(pieces, 'piece')} in all",
        "order": "portion by portion, in each all pieces",
        "words": f"{work.word_fill} of {word} used: as many {held}",
        "memory": memory_of(areas.items(), work.hardware),
    }
    return Explanation(1, blocking, {"loop_order": "block_major"}, aspects)


VECTOR_CHANNELS = Lowering(
    "vector_channels",
    "sums, means, variances and products over pixels and images: by the vector unit, a channel a lane",
    ways,
    unit="vector",
    whole_channels=True,
    partial=True,
    multiplies=False,
    banks=True,
    ignores=IGNORED | {"block.rows", "block.cols", "block.images", "block.out_channels", "block_n", "strips"},
)
