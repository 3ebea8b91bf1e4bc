"""Work on the way: the vector unit computes the ifmap while it is loaded, and changes and sums up results while they
are spilled (docs/timing.md, section 5).

An op ahead of the layer may read a second map. This map is loaded after the ifmap, into the same words, and the
vector unit combines both there. A second map of an op behind the layer is loaded into words of its own. Numbers of
channels are loaded once, each into a word of its lane. Sums over results have a word in each lane, to which every spill
adds. At the end the sums go to HBM and come back element by element, so that the elements of a word can be added.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cached_property, partial
from math import prod
from typing import Any, NamedTuple, TypeAlias

from tpusim.base.errors import CapacityError, UnsuitableError
from tpusim.machines.tpu.cut.blocks import CHANNEL, IMAGE, portions
from tpusim.machines.tpu.cut.traffic import Traffic
from tpusim.machines.tpu.description import Hardware
from tpusim.machines.tpu.lowering.drafts import Draft
from tpusim.machines.tpu.lowering.vector import in_turn, lane_step
from tpusim.machines.tpu.program.steps import Vector
from tpusim.machines.tpu.program.tensors import Tensor
from tpusim.machines.tpu.program.transfers import PRODUCTS, Along, Fill, Part, TransferOp, Work
from tpusim.machines.tpu.schedule.scheduler import buffers, link
from tpusim.machines.tpu.schedule.units import (
    Act,
    Area,
    EqualMoves,
    Key,
    Moves,
    Piece,
    SlotNeed,
    Touch,
    Unit,
    Units,
    VectorWork,
    in_one,
    when_needed,
    with_the_spill,
)
from tpusim.network.ops.fused import TALLIES, Fused, Way
from tpusim.network.ops.op import OFMAP, Op

IFMAP, FILTER = "ifmap", "filter"
BEHIND, MAPS, TALLIED, GATHERED, TOTALS = "behind", "maps_behind", "tallied", "gathered", "totals"
"""Areas beside those of the layer itself: for the numbers that ops behind read, for their second maps, and for sums.
Ops ahead have areas for their numbers, too.
"""
EXCHANGED = "exchanged_tallies"
_KINDS = {"sum": "add", "squares": "squares_more", "products": PRODUCTS}
_IN_TURN = {"scale_shift": ("mul", "add")}
"""Operations with a number for each element, by the operation with a number for each lane; others keep the name."""
_BEFORE_ALL = -1
"""Order of numbers among the loads of a gap: first, because the data behind them are computed with them."""
_NOT_SO = "; leave it out of the fusion"

MetNumbers: TypeAlias = Part
"""The numbers that a part is combined with, from word 0 on: one for each lane, or words with one for each element."""


class _Ops(NamedTuple):
    """Ops done in one transfer: their operations, the map that the transfer brings, tensors of numbers, in order."""

    chain: list[TransferOp]
    map: Tensor | None
    numbers: list[Tensor]


class _Way(NamedTuple):
    """Ops on a tensor on its way, and the axis along which its channels stand."""

    tensor: Tensor
    ops: list[_Ops]
    axis: int = CHANNEL


class WorkedUnits(Units):
    """The units of a layer's core, with work on data that are loaded and on results that are spilled.

    Raises UnsuitableError where an ifmap does not come from HBM to lanes, or results do not go from there as they are.
    """

    def __init__(self, core: Units, layer: Fused, batch: int, hardware: Hardware) -> None:
        self.core, self.layer, self.hardware = core, layer, hardware
        self.word_fill, self.intermediates = core.word_fill, core.intermediates
        self.strands, self.before = core.strands, core.before
        self._traffic = Traffic(hardware)
        named = {each.name: each for each in core.tensors}
        self._ofmap = ofmap = named[OFMAP]
        if ofmap.scale != 1 or ofmap.lost:
            raise UnsuitableError(f"its outputs are not what leaves the lanes{_NOT_SO}")
        if layer.ahead and any(each.fill is not Fill for each in core.areas):
            raise UnsuitableError(f"its ifmap comes to banks, where nothing is worked on{_NOT_SO}")
        axis = IMAGE if layer.inner.turned_ifmap else CHANNEL
        self._coming: dict[str, _Way] = {}
        """Work on each tensor that is loaded, by the area of its numbers."""
        if layer.ahead:
            self._coming["ahead"] = _Way(named[IFMAP], self._cut(batch, "ahead", named[IFMAP], axis), axis)
        if layer.ahead_filter:
            self._coming["ahead_filter"] = _Way(named[FILTER], self._cut(batch, "ahead_filter", named[FILTER]))
        self._behind = self._cut(batch, "behind", ofmap)
        self._tallies = tuple(_KINDS[each] for each in layer.tallies)
        self._leaving = [unit for unit in core.units() if unit.leaves >= 0]
        self._results = next(
            each for each in core.areas if each.name == self._leaving[0].needs[self._leaving[0].leaves].area
        )
        every = (ops for some in self._ways.values() for ops in some.ops)
        given = [each for ops in every for each in (ops.map, *ops.numbers)]
        self.tensors = *core.tensors, *(each for each in given if each and each.name not in named)
        added = [MAPS] if self._maps else []
        added += [name for name, way in self._ways.items() if _numbered(way)]
        added += [GATHERED] if self._tallies else []
        if self._tallies:
            channels, fill = ofmap.shape[0], self.word_fill
            lanes = sum(place.lanes for place in self._going)
            self._stage = Tensor(EXCHANGED, (lanes, len(self._tallies), 1, fill), exchanged=True)
            self._totals = Tensor(TALLIES, (channels, len(self._tallies), 1, 1))
            self.tensors = *self.tensors, self._stage, self._totals
            self.intermediates += self._stage.size
        self.policy = core.policy._replace(order=(*core.policy.order, *added))

    def _cut(self, batch: int, where: Way, of: Tensor, axis: int = CHANNEL) -> list[_Ops]:
        """Ops on a map, grouped by the transfer that does them: a transfer of its own for each second map of the ops
        ahead, and the spill of the results for all ops behind.
        """
        found = [_Ops([], None if where == "behind" else of, [])]
        for op, mine in self.layer.chain(batch, where):
            beside = next((replace(of, name=each.name) for each in mine if each.is_map), None)
            if beside:
                found.append(_Ops([], beside, []))
            numbers = [Tensor(each.name, each.shape) for each in mine if not each.is_map]
            found[-1].numbers.extend(numbers)
            if axis == CHANNEL or not numbers:
                found[-1].chain.append(
                    TransferOp(op.operation, len(numbers), int(beside is not None), op.coefficients(1))
                )
            elif beside is None and len(numbers) <= len(names := _IN_TURN.get(op.operation, (op.operation,))):
                found[-1].chain.extend(TransferOp(name, 0, 1, turns=True) for name in names)
            else:
                raise UnsuitableError(f"{op.op} does not take numbers of elements{_NOT_SO}")
        return found

    @property
    def more(self) -> Mapping[str, Any]:
        return self.core.more

    # ---- places of what stands beside

    @cached_property
    def _maps(self) -> list[Tensor]:
        """Second maps of the ops behind."""
        return [each.map for each in self._behind if each.map]

    @property
    def _ways(self) -> Mapping[str, _Way]:
        """Work on all tensors, by the area of their numbers."""
        return {**self._coming, BEHIND: _Way(self._ofmap, self._behind)}

    def _met(self, way: _Way) -> Iterable[MetNumbers]:
        """The numbers that the parts of a loaded tensor are combined with, each once."""
        found: dict[MetNumbers, None] = {}
        cuts = {each.name: each.cut for each in self.core.areas}
        # A need comes up often; in the order of units, so that the same layer always gets the same words.
        known = {need: None for unit in self.core.units() for need in unit.needs}
        due, seen = [*known], set[tuple[str, Hashable]]()
        while due:
            area, key = due.pop()
            cut = cuts.get(area)
            for piece in cut(key, 1, False) if cut else ():
                # What a piece needs may be made of the ifmap itself.
                due += [each for each in piece.needs if each not in known]
                known |= dict.fromkeys(piece.needs)
                if kind := _of_channels(piece.alike, way.axis):
                    if (area, kind.key) in seen:
                        continue
                    seen.add((area, kind.key))
                for each in piece.brings(0, *[0] * len(piece.needs)):
                    for part in each.parts if isinstance(each, Moves) and each.tensor.name == way.tensor.name else ():
                        found[self._place(part, way.axis)] = None
        return found

    @cached_property
    def _first_of_kinds(self) -> list[Unit]:
        """The first unit of each kind; a kind leaves equal channels in one way."""
        found: dict[Hashable, Unit] = {}
        for unit in self._leaving:
            kind = _of_channels(self.core.left_alike(unit), CHANNEL)
            found.setdefault(kind.key if kind else unit.needs[unit.leaves], unit)
        return [*found.values()]

    @cached_property
    def _going(self) -> dict[MetNumbers, int]:
        """The places of channels in results, each with its number."""
        found: dict[MetNumbers, int] = {}
        for unit in self._first_of_kinds:
            for part in self.core.spill(unit, 0).parts:
                if part.feed is not None:
                    raise UnsuitableError(f"its results do not go word by word{_NOT_SO}")
                found.setdefault(self._place(part), len(found))
        return found

    @cached_property
    def _words(self) -> dict[str, dict[MetNumbers, int]]:
        """By tensor of numbers, the first word of each place."""
        words = dict[str, dict[MetNumbers, int]]()
        for name, way in self._ways.items():
            places, at = (self._met(way) if name != BEHIND else self._going) if _numbered(way) else (), 0
            for tensor in (each for some in way.ops for each in some.numbers):
                words[tensor.name] = {}
                for place in places:
                    words[tensor.name][place] = at
                    at += place.words
        return words

    def _word_of(self, numbers: Tensor, place: MetNumbers) -> int:
        """The first word of the numbers that a part, or a piece of a part, is combined with."""
        known = self._words[numbers.name]
        if place in known:
            return known[place]
        return next(word + at for other, word in known.items() if (at := _within(place, other)) is not None)

    def _bring_numbers(self, way: _Way, base: int) -> Iterator[Moves]:
        """Moves of all numbers of one way."""
        for tensor in (each for some in way.ops for each in some.numbers):
            words = self._words[tensor.name].items()
            parts = tuple(place._replace(base=base + word) for place, word in words)
            # None are needed where all that comes is padding.
            if parts:
                yield self._traffic.numbers(tensor, parts, tensor.size)

    @property
    def areas(self) -> tuple[Area, ...]:
        """Areas of the core, then those for maps behind, numbers, sums, and the elements of sums."""
        areas = [self._worked_on(each) for each in self.core.areas]
        results, lanes = self._results, self.hardware.lanes
        # A spill that comes at once ends the gap of its unit.
        gaps = with_the_spill(max(1, self.core.policy.lag))
        if maps := len(self._maps):
            words, brings = maps * results.words, in_one(self._bring_maps, maps, self._map_alike)
            areas.append(Area(MAPS, OFMAP, words, results.count, results.lanes, brings, late=True, gaps=gaps))
        for name, way in self._ways.items():
            if count := _numbered(way):
                piece = Piece(_BEFORE_ALL, (0,), partial(self._bring_numbers, way), steps=count)
                held = (self._words[tensor.name] for some in way.ops for tensor in some.numbers)
                words = sum(place.words for each in held for place in each)
                brings = partial(_whole, piece)
                areas.append(Area(name, "numbers", words, 1, lanes, brings, gaps=with_the_spill(0)))
        if kinds := len(self._tallies):
            own, terms = kinds * len(self._going), self.word_fill * len(self._copies)
            areas += [
                Area(TALLIED, TALLIES, own, 1, lanes),
                Area(
                    GATHERED,
                    TALLIES,
                    kinds * terms * len(self._portions),
                    1,
                    lanes,
                    self._gather,
                    late=True,
                    gaps=when_needed,
                ),
                Area(TOTALS, TALLIES, kinds * len(self._portions), 1, lanes),
            ]
        return tuple(areas)

    def _place(self, part: Part, axis: int = CHANNEL) -> MetNumbers:
        """The numbers that a part is combined with: those of the channels of its lanes; or, where images stand in the
        place of channels, a word of numbers for each word of the part.
        """
        if axis == CHANNEL:
            channels = next(each for each in part.lane if each.axis == CHANNEL)
            return Part(0, part.first_lanes, (channels,), (Along(1, range(1)),), 1)
        counts = [len(each.coordinates) for each in part.items]
        # The last items are those of a word, down to a single one, which the images of a word are.
        cut = next(at for at in range(len(counts) - 1, -1, -1) if prod(counts[at:]) == part.per_word)
        # Words of a pixel move fastest of those that a part has.
        turn = [each for each in part.items[max(cut - 1, 0) : cut] if each.axis == axis]
        inner = (each if each.axis == axis else Along(1, (0,) * len(each.coordinates)) for each in part.items[cut:])
        every = (Along(0, (0,) * self.hardware.lanes),)
        return Part(0, (0,), every, (*turn, *inner), part.per_word)

    # ---- what comes

    def _worked_on(self, area: Area) -> Area:
        """An area with the work on the data that are loaded into it."""
        name = next((name for name, way in self._coming.items() if way.tensor.name == area.tensor), "")
        if area.cut is None or not name:
            return area
        cut = area.cut

        def pieces(key: Key, gaps: int, grows: bool) -> list[Piece]:
            return [self._piece(name, each) for each in cut(key, gaps, grows)]

        return replace(area, cut=pieces)

    def _piece(self, name: str, piece: Piece) -> Piece:
        way = self._coming[name]
        numbered = _numbered(way) > 0
        needs = (SlotNeed(name, 0), *piece.needs) if numbered else piece.needs

        def brings(base: int, *bases: int) -> Iterator[Moves | Vector]:
            first, others = (bases[0], bases[1:]) if numbered else (0, bases)
            for each in piece.brings(base, *others):
                if isinstance(each, Moves) and each.tensor.name == way.tensor.name:
                    yield from self._made(way, each, first)
                else:
                    yield each

        steps, chained = piece.steps * len(way.ops), len(way.ops) > 1
        alike = _of_channels(piece.alike, way.axis) if numbered else piece.alike
        return piece._replace(brings=brings, needs=needs, steps=steps, chained=chained, alike=alike)

    def _made(self, way: _Way, moves: Moves, first: int) -> Iterator[Moves]:
        """Transfers that bring a part of a tensor; numbers stand from word `first` on."""
        places = [self._place(part, way.axis) for part in moves.parts] if _numbered(way) else []
        for ops in way.ops:
            assert ops.map
            words = []
            for number, part in enumerate(moves.parts):
                held = [first + self._word_of(each, places[number]) for each in ops.numbers]
                words.append((*(part.base for each in ops.chain for _ in range(each.maps) if not each.turns), *held))
            around = tuple(place.words for place in places)
            work = Work(tuple(ops.chain), (), tuple(words), (False,) * len(words), around) if ops.chain else None
            yield moves._replace(tensor=ops.map, work=work)

    # ---- what goes

    def units(self) -> Iterator[Unit]:
        beside = [MAPS] if self._maps else []
        beside += [BEHIND] if any(each.numbers for each in self._behind) else []
        beside += [TALLIED] if self._tallies else []
        for unit in self.core.units():
            if unit.leaves >= 0:
                key, count = unit.needs[unit.leaves].key, len(unit.needs)
                more = [SlotNeed(name, key if name == MAPS else 0) for name in beside]
                places = tuple(range(count, count + len(more)))
                tallies = places[-1] if self._tallies else -1
                unit = unit._replace(needs=(*unit.needs, *more), beside=places, tallies=tallies)
            yield unit
        if self._tallies:
            yield Unit((SlotNeed(TALLIED, 0),), None, TALLIED, leaves=0, makes=TALLIED)
            # The sums are on their way once all results are.
            for _ in range(self.core.policy.lag - 1):
                yield Unit((), None, "")
            yield Unit((SlotNeed(GATHERED, 0), SlotNeed(TOTALS, 0)), None, TOTALS, steps=1, leaves=1)

    def _core(self, unit: Unit) -> Unit:
        """The core's unit that leaves the same result."""
        return self._known[unit.needs[unit.leaves]] if unit.beside else unit

    @cached_property
    def _known(self) -> dict[SlotNeed, Unit]:
        return {unit.needs[unit.leaves]: unit for unit in self._leaving}

    def alike(self, unit: Unit) -> Hashable:
        if unit.about == TOTALS or unit.makes == TALLIED or not unit.needs:
            return None
        return self.core.alike(self._core(unit))

    def acts(self, unit: Unit, bases: Sequence[int]) -> Iterable[Act]:
        if unit.about == TOTALS:
            return self._added(*bases)
        if unit.makes == TALLIED or not unit.needs:
            return ()
        core = self._core(unit)
        return self.core.acts(core, bases[: len(core.needs)])

    def channels(self, unit: Unit) -> tuple[int, ...]:
        return self.core.channels(unit)

    def spill(self, unit: Unit, base: int) -> Moves:
        if unit.makes == TALLIED:
            return self._moved_away(base)
        if unit.about == TOTALS:
            return self._moved_out(base)
        return self.core.spill(self._core(unit), base)

    def left_alike(self, unit: Unit) -> EqualMoves | None:
        if unit.makes == TALLIED or unit.about == TOTALS:
            return None
        found, begins = _of_channels(self.core.left_alike(self._core(unit)), CHANNEL), unit.needs[unit.leaves]
        # The first results of their channels begin the sums, to which others are added.
        return found and EqualMoves((found.key, begins if begins in self._beginning else None), found.origin)

    def _map_alike(self, key: Key) -> EqualMoves | None:
        return self.core.left_alike(self._known[SlotNeed(self._results.name, key)])

    def _bring_maps(self, key: Key, base: int) -> Iterator[Moves]:
        """Moves of the second maps of the ops behind, for one result."""
        moves = self.core.spill(self._known[SlotNeed(self._results.name, key)], base)
        for number, tensor in enumerate(self._maps):
            away = number * self._results.words
            yield moves._replace(
                tensor=tensor, parts=tuple(part._replace(base=part.base + away) for part in moves.parts)
            )

    def worked(self, unit: Unit, bases: Sequence[int], moves: Moves) -> Moves:
        """Moves with the work of the ops behind, and with the sums over their results."""
        if not (self._tallies or self.layer.behind) or unit.needs[unit.leaves] not in self._known:
            return moves
        at = {unit.needs[place].area: bases[place] for place in unit.beside}
        own, kinds, words, begins = bases[unit.leaves], len(self._tallies), [], []
        for number, part in enumerate(moves.parts):
            place = self._place(part)
            maps = [at[MAPS] + one * self._results.words + part.base - own for one in range(len(self._maps))]
            held = [at[BEHIND] + self._words[each.name][place] for ops in self._behind for each in ops.numbers]
            tallies = [at[TALLIED] + self._going[place] * kinds + one for one in range(kinds)]
            words.append((*maps, *held, *tallies))
            begins.append(self._first.get(place) == (unit.needs[unit.leaves], number))
        chain = tuple(each for ops in self._behind for each in ops.chain)
        return moves._replace(work=Work(chain, self._tallies, tuple(words), tuple(begins)))

    # ---- sums over results

    @cached_property
    def _first(self) -> dict[MetNumbers, tuple[SlotNeed, int]]:
        """The first result, and its part, that is added to the sums of a place."""
        found: dict[MetNumbers, tuple[SlotNeed, int]] = {}
        for unit in self._first_of_kinds if self._tallies else ():
            for number, part in enumerate(self.core.spill(unit, 0).parts):
                found.setdefault(self._place(part), (unit.needs[unit.leaves], number))
        return found

    @cached_property
    def _beginning(self) -> set[SlotNeed]:
        """Results with which sums begin."""
        return {need for need, _ in self._first.values()}

    @cached_property
    def _portions(self) -> list[range]:
        """Channels, as many at a time as there are lanes."""
        return portions(self._totals.shape[0], self.hardware.lanes)

    @cached_property
    def _lanes(self) -> int:
        return len(self._portions[0])

    @cached_property
    def _copies(self) -> list[dict[int, int]]:
        """Rows of the tensor in HBM that hold the sums of each channel: several rows where several lanes sum up one
        channel.
        """
        rows, at = defaultdict[int, list[int]](list), 0
        for place in self._going:
            for row, channel in enumerate(place.lane[0].coordinates, at):
                rows[channel].append(row)
            at += place.lanes
        most = max(map(len, rows.values()))
        return [{channel: each[copy] for channel, each in rows.items() if copy < len(each)} for copy in range(most)]

    def _moved_away(self, base: int) -> Moves:
        """The transfer of all sums, element by element of their words, to HBM."""
        kinds, parts, row = len(self._tallies), [], 0
        items = Along(1, range(kinds)), Along(3, range(self.word_fill))
        for place, number in self._going.items():
            lane = (Along(0, range(row, row + place.lanes)),)
            parts.append(Part(base + number * kinds, place.first_lanes, lane, items, self.word_fill))
            row += place.lanes
        return self._traffic.numbers(self._stage, tuple(parts), self._stage.size)

    def _gather(self, key: Key, gaps: int, grows: bool) -> list[Piece]:
        """Bring every element of the sums into a word of its own, in the lane of its channel, as a piece."""

        def brings(base: int) -> Iterator[Moves]:
            kinds, fill, parts = len(self._tallies), self.word_fill, []
            for channels in self._portions:
                every = [*channels, *[-1] * (self._lanes - len(channels))]
                for kind in range(kinds):
                    for rows in self._copies:
                        lane = (Along(0, tuple(rows.get(channel, -1) for channel in every)),)
                        items = Along(1, range(kind, kind + 1)), Along(3, range(fill))
                        parts.append(Part(base, (0,), lane, items, 1))
                        base += fill
            yield self._traffic.numbers(self._stage, tuple(parts), self._stage.size)

        return [Piece(0, (0,), brings, (SlotNeed("", TALLIED),))]

    def _added(self, gathered: int, totals: int) -> Iterator[VectorWork]:
        """The vector step that adds the elements of every sum."""
        terms, words = self.word_fill * len(self._copies), len(self._tallies) * len(self._portions)
        walks = (in_turn(gathered + each, words, terms) for each in range(terms))
        step = lane_step(self._lanes, "add", walks, in_turn(totals, words))
        yield VectorWork([step], (Touch(0),), 1, True)

    def _moved_out(self, base: int) -> Moves:
        """The transfer of the final sums to HBM."""
        kinds = range(len(self._tallies))
        parts = tuple(
            Part(base + number * len(kinds), (0,), (Along(0, channels),), (Along(1, kinds),), 1)
            for number, channels in enumerate(self._portions)
        )
        return self._traffic.numbers(self._totals, parts, self._totals.size)


def _whole(piece: Piece, key: Key, gaps: int, grows: bool) -> list[Piece]:
    """Return a piece whose moves depend on no key."""
    return [piece]


def _of_channels(alike: EqualMoves | None, axis: int) -> EqualMoves | None:
    """The kind of moves that begin with equal channels along an axis; None where their tensor has no such axis."""
    return EqualMoves((alike.key, alike.origin[axis]), alike.origin) if alike and axis < len(alike.origin) else None


def _numbered(way: _Way) -> int:
    """Number of the tensors of numbers of a way."""
    return sum(len(each.numbers) for each in way.ops)


def on_the_way(layer: Op) -> bool:
    """Whether a layer has work on the way."""
    return isinstance(layer, Fused) and layer.on_the_way


def worked(draft: Draft, layer: Fused, batch: int, hardware: Hardware) -> Draft:
    """The draft of a layer's core with its work on the way; the same draft where there is none.

    Raises UnsuitableError, or makes the draft raise it, where an op cannot be done on the way.
    """
    if not on_the_way(layer):
        return draft
    bus = sum(prod(shape) for shape in layer.shapes(batch).values()) * hardware.element_bytes

    def estimate() -> float:
        """All tensors cross the bus, whatever else there is to do."""
        return max(draft.estimate(), bus / float(hardware.hbm_bytes_per_cycle))

    made = replace(draft, make=lambda: WorkedUnits(draft.units, layer, batch, hardware), estimate=estimate)
    for ops, name in ((layer.ahead, IFMAP), (layer.ahead_filter, FILTER)):
        if ops:
            made = made.telling(f"{name} made", f"by {' and '.join(each.op for each in ops)}, as it comes")
    after = (*(each.op for each in layer.behind), *layer.tallies)
    return made.telling("behind", f"{' and '.join(after)} of results as they go") if after else made


def slowed(layer: Op, batch: int, hardware: Hardware) -> Hardware:
    """The machine with a slower bus, for the choice of blocks: the rest of the bandwidth serves the second maps."""
    if not on_the_way(layer):
        return hardware
    own, every = (sum(map(prod, of.shapes(batch).values())) for of in (layer.core, layer))
    return hardware.having("hbm", bandwidth_bytes_per_s=max(1, hardware.hbm.bandwidth_bytes_per_s * own // every))


def _within(place: MetNumbers, other: MetNumbers) -> int | None:
    """The word of `other` at which the words of `place` begin; None where `other` does not contain them."""
    if (place.lane, place.items[1:]) != (other.lane, other.items[1:]) or not place.items:
        return None
    few, many = (tuple(each.items[0].coordinates) for each in (place, other))
    starts = (at for at in range(len(many) - len(few) + 1) if many[at : at + len(few)] == few)
    return next(starts, None)


def beyond(draft: Draft, hardware: Hardware) -> int:
    """Words of a lane by which a draft exceeds the capacity; 0 if it fits."""
    units = draft.units
    taken = max((each.base + each.words for each in buffers(units, link(units))), default=0)
    return max(0, taken - hardware.capacity_words)


def no_room(words: int, hardware: Hardware) -> CapacityError:
    """An error for a layer whose smallest block leaves no room for the work on the way."""
    return CapacityError(
        f"work on the way takes {words} words beside the blocks of a lane, which has "
        f"{hardware.capacity_words}; set vector_memory.capacity to more, or leave it out of the fusion"
    )
