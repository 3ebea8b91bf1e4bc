"""Execution of the steps of a Program in list order, on values.

Every operand is read from a vector-memory word at a generated address and every result is written back through one, so
a wrong address, lane, weight or order gives a wrong number.

Passes that add to the same words one after the other are multiplied together: operands are copied out of the memories
when their step comes up, weights are seen where they are until these words change, and one matrix product does the sums
of them all. It runs no later than the next step that touches the words of the sums. Exact arithmetic makes that the
same as one pass at a time; where sums are rounded, they are in an order of their own, unless that of the array is asked
for.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from tpusim.base.errors import CheckFailed
from tpusim.base.memory import at_rest
from tpusim.machines.lowered import Taker
from tpusim.machines.tpu.datapath.memories import (
    HbmTensor,
    Reads,
    Values,
    collected,
    followed,
    hbm_tensors,
    inside,
    pack,
    picked_by,
    unpacked,
    walk_of,
)
from tpusim.machines.tpu.description import Hardware
from tpusim.machines.tpu.program.addresses import PADDING, BankFeed, Feed, LaneGroup, PickedWords, Pointers, walked
from tpusim.machines.tpu.program.operations import OPERATIONS, finished
from tpusim.machines.tpu.program.program import Program
from tpusim.machines.tpu.program.steps import Preload, Stream, Vector
from tpusim.machines.tpu.program.tensors import Tensor
from tpusim.machines.tpu.program.transfers import BankFill, Fill, InboundTransfer, Keep, Part, Prefetch, Spill
from tpusim.memory.hbm_layout import Addresses

OPERAND_ELEMENTS = 1 << 20
"""Elements of streamed operands that are gathered before they are multiplied: enough for BLAS, few enough for the
cache.
"""

JOINED_ELEMENTS = OPERAND_ELEMENTS // 4
"""Most elements of weights that are kept side by side."""


class Weights(NamedTuple):
    """Weights [cols, rows] of a pass; a view of the words in `place`, or a copy if that is empty."""

    values: Values
    place: range

    def beside(self, base: int, words: int) -> Weights:
        """The weights once words [base, base + words) change: a copy, if they are among these."""
        return Weights(self.values.copy(), range(0)) if overlap(self.place, base, words) else self


class Reduction:
    """Passes that add up in the same words: gathered one by one, then multiplied and added together.

    Gathered operands, and weights side by side, stay where they are for passes that read the same words again.
    """

    def __init__(self, elements: int, number: type[Any]) -> None:
        self.elements, self.number = elements, number
        self.base = self.end = 0
        self.results: Values = np.empty((0, 0, 0), number)
        self.accumulate = False
        self._store: Values = np.empty(0, number)
        self.operands: Values = np.empty((0, 0), number)
        self.filled = 0
        self.weights: list[Weights] = []
        self.biases: list[Values | None] = []
        self._gathered: list[tuple[tuple[Feed, int] | None, range]] = []
        self._joined: dict[tuple[tuple[range, int, int], ...], tuple[range, Values]] = {}

    def settle(self, base: int, words: int) -> None:
        """Do the pending sums before words [base, base + words) are touched."""
        if base < self.end and self.base < base + words:
            self.multiply()

    def overwritten(self, base: int, words: int) -> None:
        """Let go of words [base, base + words), which are about to change."""
        # Copied, not multiplied at once: sums that are rounded are grouped by passes, whatever comes to their weights.
        if self.weights:
            self.weights = [each.beside(base, words) for each in self.weights]
        for key in [key for key, (whole, _) in self._joined.items() if overlap(whole, base, words)]:
            del self._joined[key]
        for at, (_, place) in enumerate(self._gathered):
            if overlap(place, base, words):
                self._gathered[at] = None, place

    def continues(self, step: Stream) -> bool:
        """Whether `step` adds to the very words of the pending passes."""
        same = self.base == step.result_base and self.results.shape[:2] == (step.cols, step.words)
        return bool(self.weights) and same and step.accumulate

    def open(self, step: Stream, results: Values) -> None:
        """Start a reduction into `results` [cols, words, E]."""
        self.base, self.end = step.result_base, step.result_base + step.words
        self.results, self.accumulate = results, step.accumulate

    def finds(self, step: Stream) -> bool:
        """Whether the operands of the next pass are where it wants them, from an earlier one."""
        at, filled = (len(self.weights), self.filled) if self.continues(step) else (0, 0)
        fits = self.operands.shape[1] == step.words * self.elements and filled + step.rows <= len(self.operands)
        return fits and at < len(self._gathered) and self._gathered[at][0] == (step.reads, step.rows)

    def rows(self, step: Stream) -> Values:
        """Room for the operands [rows, elements] of the next pass."""
        columns = self.results.shape[1] * self.elements
        if self.operands.shape[1] != columns or self.filled + step.rows > len(self.operands):
            self.multiply()
            height = max(step.rows, OPERAND_ELEMENTS // columns)
            if self.operands.shape[1] != columns or height > len(self.operands):
                if height * columns > len(self._store):
                    self._store = np.empty(max(OPERAND_ELEMENTS, height * columns), self.number)
                self.operands, self._gathered = self._store[: height * columns].reshape(height, columns), []
        at, room = len(self.weights), self.operands[self.filled : self.filled + step.rows]
        whole = _hull([*step.reads.extents])
        # Nobody tells of new words in banks, and its own sums change while passes are added to them.
        lost = isinstance(step.reads, BankFeed) or overlap(whole, self.base, self.end - self.base)
        self._gathered[at:] = [(None if lost else (step.reads, step.rows), whole)]
        return room

    def add(self, weights: Weights, biases: Values | None = None) -> None:
        """Let the operands of the pass meet `weights` [cols, rows]; sums begin at `biases` [cols], or at zero."""
        self.weights.append(weights)
        self.biases.append(biases)
        self.filled += weights.values.shape[1]

    def multiply(self) -> None:
        """Add the pending products into the result words; the reduction may go on after that."""
        if not self.weights:
            return
        # One product for all pending passes: their sum over rows is the sum over all their operands.
        weights, operands = self._side_by_side(), self.operands[: self.filled]
        if self.accumulate or not self.results[0].flags.c_contiguous:
            sums = (weights @ operands).reshape(self.results.shape)
            if self.accumulate:
                self.results += sums
            else:
                self.results[...] = sums
        else:
            np.matmul(weights, operands, out=self.results.reshape(len(weights), -1))
        for biases in self.biases:
            if biases is not None:
                self.results += biases[:, None, None]
        self._done()

    def _side_by_side(self) -> Values:
        """The weights of all pending passes."""
        if len(self.weights) == 1:
            return self.weights[0].values
        wanted = tuple((each.place, *each.values.shape) for each in self.weights)
        if wanted in self._joined:
            return self._joined[wanted][1]
        joined = np.concatenate([each.values for each in self.weights], axis=1)
        if all(place for place, _, _ in wanted) and joined.size <= JOINED_ELEMENTS:
            while sum(each.size for _, each in self._joined.values()) + joined.size > JOINED_ELEMENTS:
                del self._joined[next(iter(self._joined))]
            self._joined[wanted] = _hull([place for place, _, _ in wanted]), joined
        return joined

    def _done(self) -> None:
        """Note that nothing is pending, and that later products are added."""
        self.weights, self.biases, self.filled, self.accumulate = [], [], 0, True


def overlap(place: range, base: int, words: int) -> bool:
    """Whether some word is both in `place` and in [base, base + words)."""
    return place.start < base + words and base < place.stop


def _hull(places: Sequence[range]) -> range:
    """All words from the first of some places to the last."""
    return range(min(each.start for each in places), max(each.stop for each in places)) if places else range(0)


class ArrayOrderReduction(Reduction):
    """Sums in the order of the array: down the rows of a pass from its biases or zero, then to the words."""

    def multiply(self) -> None:
        """Pass by pass; every product and every sum is rounded by itself."""
        if not self.weights:
            return
        first = 0
        for (weights, _), biases in zip(self.weights, self.biases, strict=True):
            rows = self.operands[first : first + weights.shape[1]]
            sums = np.zeros((len(weights), rows.shape[1]), self.number)
            if biases is not None:
                sums += biases[:, None]
            for row, operands in enumerate(rows):
                sums += weights[:, row, None] * operands
            place = sums.reshape(self.results.shape)
            # The vector unit adds a pass to the word once the pass has left the array, so it is rounded in this place.
            self.results[...] = self.results + place if self.accumulate else place
            self.accumulate, first = True, first + len(rows)
        self._done()


def run(
    program: Program,
    hardware: Hardware,
    operands: Mapping[str, NDArray[Any]],
    takers: Mapping[str, Taker] | None = None,
    in_array_order: bool = False,
) -> dict[str, Values]:
    """Every tensor that the Program writes, by name; NaN where it wrote nothing.

    Args:
        operands: tensors that HBM holds at the start, in the Program's shape or one that reshapes to it.
        takers: receivers of the values written to a tensor; it is held here as well only if the Program reads it again.
        in_array_order: whether sums are added row by row and pass by pass, in the order of the array.

    Raises:
        CheckFailed: when a step addresses words or lanes that do not exist.
    """
    with at_rest():
        return _Run(
            program, hardware, operands, takers or {}, ArrayOrderReduction if in_array_order else Reduction
        ).written()


class _Run:
    def __init__(
        self,
        program: Program,
        hardware: Hardware,
        operands: Mapping[str, NDArray[Any]],
        takers: Mapping[str, Taker],
        reduction: type[Reduction],
    ) -> None:
        self.program, self.operands, self.takers = program, program.given(operands), takers
        self.word = hardware.vector_memory.word_elements
        width = program.widest_word(self.word)
        # What nothing has written is no number, so that a Program which reads it never passes for its zeros.
        # Behind them comes a word of zeros, which is read in place of padding.
        self.memory = np.full((hardware.lanes, program.words + 1, width), np.nan, program.number)
        self.memory[:, -1] = 0
        self.banks = np.full((program.bank_words, width), np.nan, program.number)
        read = {recipe.tensor.name for recipe in program.rows.recipes if isinstance(recipe, InboundTransfer | Prefetch)}
        self.hbm = hbm_tensors(program, self.operands, {*takers} - read)
        self.weights: dict[int, Weights] = {}
        self.biases: dict[int, Values] = {}
        self.reduction = reduction(program.fill_of(0), program.number)

    def written(self) -> dict[str, Values]:
        """Execute every step."""
        rows = self.program.rows
        for index, preload in enumerate(rows.table["preload"].tolist()):
            match step := rows.located(index):
                case Stream():
                    self._stream(index, step, preload)
                case Preload():
                    words = self._words(0, step.cols, step.base, step.words)
                    weights = words[..., : self.word].reshape(step.cols, -1)[:, : step.rows]
                    self.weights[index] = Weights(weights, range(step.base, step.base + step.words))
                    if step.bias is not None:
                        self.biases[index] = self._words(0, step.cols, step.bias, 1)[:, 0, 0].copy()
                case Fill():
                    self._fill(self.hbm[step.tensor.name], step.parts, step)
                case Vector():
                    self._vector(step)
                case BankFill():
                    for part in step.parts:
                        words = np.zeros((part.lanes * part.words, self.banks.shape[1]), self.banks.dtype)
                        elements = self.hbm[step.tensor.name].read(part)
                        words[:, : part.per_word] = elements.reshape(len(words), part.per_word)
                        self._in_banks(part.addresses.ravel())
                        self.banks[part.addresses.ravel()] = words
                case Prefetch():
                    for each in step.parts:
                        self.hbm[step.to.name].write(each, self.hbm[step.tensor.name].read(each))
                case Spill():
                    # If readers are given other numbers, these are in the words by now, and Keep has already handed on
                    # the layer's own.
                    if not self.program.instead(step.tensor.name):
                        self._hand_on(step.tensor, step.parts, step)
                case Keep():
                    # Readers on chip find the given values in place of these.
                    self._hand_on(step.tensor, step.parts)
                    for name in self.program.instead(step.tensor.name):
                        self._fill(self.hbm[name], step.parts)
                case _:
                    raise CheckFailed(f"step {index} ({step.label}): the data path has no handler for it")
        there = {*self.operands, *(each.tensor for each in self.program.handed), *self.program.prefetched}
        return {name: tensor.values for name, tensor in self.hbm.items() if name not in there}

    def _words(self, first_lane: int, lanes: int, base: int, words: int) -> Values:
        """A view [lanes, words, W] of the memories, after any pending sums that belong there."""
        count, depth = len(self.memory), self.program.words
        if not (base >= 0 and base + words <= depth and first_lane >= 0 and first_lane + lanes <= count):
            raise CheckFailed(
                f"words [{base}, {base + words}) of lanes [{first_lane}, {first_lane + lanes}) were addressed; "
                f"the layer has {depth} words in {count} lanes"
            )
        self.reduction.settle(base, words)
        return self.memory[first_lane : first_lane + lanes, base : base + words]

    def _to_write(self, first_lane: int, lanes: int, base: int, words: int) -> Values:
        """The view to write to, after everything that needs what is there now."""
        view = self._words(first_lane, lanes, base, words)
        self.reduction.overwritten(base, words)
        for index, each in self.weights.items():
            if overlap(each.place, base, words):
                self.weights[index] = each.beside(base, words)
        return view

    # ---- HBM to vector memory and back

    def _fill(self, tensor: HbmTensor, parts: Sequence[Part], step: Fill | None = None) -> None:
        """Put every part into the lanes of each of its copies; the vector unit may work on its words on their way."""
        for number, part in enumerate(parts):
            values = tensor.read(part)
            for first in part.first_lanes:
                words = self._to_write(first, part.lanes, part.base, part.words)
                if step and step.work:
                    came = np.zeros_like(words)
                    pack(values, came, part)
                    words[...] = self._worked(step, number, first, came)
                else:
                    pack(values, words, part)

    def _worked(self, step: Fill | Spill, number: int, first: int, words: Values) -> Values:
        """Words [lane, word, W] of a part from lane `first` on, as the work on them leaves them; tallies are added."""
        part, work, lanes = step.parts[number], step.work, len(words)
        assert work
        bases, held, tallies = step.beside(number)
        maps = [
            self._words(first, lanes, base, work.around[number])[:, np.arange(part.words) % work.around[number]]
            if turns
            else self._words(first, lanes, base, part.words)
            for base, turns in zip(bases, work.turns, strict=True)
        ]
        beside, numbers = iter(maps), iter(held)
        for operation, count, others, coefficients, turns in work.chain:
            scalars = [self._words(first, lanes, next(numbers), 1)[:, 0, 0] for _ in range(count)]
            operands = [words, *(next(beside) for _ in range(others))]
            # A fill combines what is in place with what comes.
            operands = operands[::-1] if isinstance(step, Fill) and not turns else operands
            given = np.array(scalars).reshape(count, lanes).astype(words.dtype)
            words = OPERATIONS[operation].values(operands, given, coefficients)
        if (there := inside(part, step.tensor.shape, words.shape[2])) is not None:
            words = np.where(there, words, words.dtype.type(0))
        for operation, factor, at in zip(work.tallies, work.factors, tallies, strict=True):
            tally = self._to_write(first, lanes, at, 1)
            before = np.zeros_like(tally) if work.begins[number] else tally
            operands = [np.zeros_like(words), words, *([maps[factor]] if factor >= 0 else ())]
            terms = OPERATIONS[operation].values(operands, np.empty((0, lanes), words.dtype), ())
            # Added word by word, as they come: sums are rounded in that order.
            tally[...] = np.cumsum(np.concatenate([before, terms], axis=1), axis=1)[:, -1:]
        return words

    def _in_banks(self, addresses: Addresses) -> None:
        outside = addresses[(addresses < 0) | (addresses >= len(self.banks))]
        if len(outside):
            raise CheckFailed(f"word {outside[0]} is outside the banks' words 0..{len(self.banks) - 1}")

    def _hand_on(self, tensor: Tensor, parts: Sequence[Part], step: Spill | None = None) -> None:
        """Hand on every part from its lanes, or from the first of its copies, as work on its way leaves it."""
        name = tensor.name
        takers: list[Taker] = [self.hbm[name].write] if name in self.hbm else []
        takers += [self.takers[name]] if name in self.takers else []
        takers += [self.hbm[each].write for each in self.program.copies(name)]
        for number, part in enumerate(parts):
            if part.feed is None:
                words = self._words(part.first_lanes[0], part.lanes, part.base, part.words)
                if step and step.work:
                    words = self._worked(step, number, part.first_lanes[0], words)
                # Copies of a part are equal, so that the first one is enough.
                values = tensor.in_hbm(unpacked(words, part))
            else:
                reads = map(self._read_by, part.feed.groups)
                values = tensor.in_hbm(collected(reads, part, self.memory))
            for take in takers:
                take(part, values)

    # ---- the array

    def _stream(self, index: int, step: Stream, preload: int) -> None:
        """Copy the operands of array rows; a row without a lane group gets zeros."""
        if (elements := self.program.fill_of(index)) != self.reduction.elements:
            self.reduction.multiply()
            self.reduction = type(self.reduction)(elements, self.program.number)
        found = self.reduction.finds(step)
        anew = () if found or isinstance(step.reads, BankFeed) else step.reads.groups
        reads = [self._read_by(group) for group in anew]
        if not self.reduction.continues(step):
            # Other sums go first: these words may be their results.
            self.reduction.multiply()
            results = self._to_write(0, step.cols, step.result_base, step.words)
            self.reduction.open(step, results[..., :elements])
        if not found:
            self._gather(step, reads, self.reduction.rows(step))
        self.reduction.add(self.weights.pop(preload), self.biases.pop(preload, None))
        if step.finish:
            sums = self._words(0, step.cols, step.result_base, step.words)[..., :elements]
            sums[...] = finished(sums, step.finish)

    def _gather(self, step: Stream, reads: Sequence[tuple[LaneGroup, Reads]], operands: Values) -> None:
        """Copy what the lanes read into the rows of `operands`."""
        elements = self.reduction.elements
        if not step.reads.fills(step.rows):
            operands[...] = 0
        for group in step.reads.groups if isinstance(step.reads, BankFeed) else ():
            stored, addresses = walked(group.pattern)
            self._in_banks(addresses[stored])
            fetched: Values = np.zeros((len(addresses), elements), self.banks.dtype)
            fetched[stored] = self.banks[addresses[stored], :elements]
            # All rows of a group want the same words.
            operands[group.first_lane : min(group.first_lane + group.lanes, step.rows)] = fetched.reshape(-1)
        for group, walk in reads:
            at = slice(group.first_lane, min(group.first_lane + group.lanes, step.rows))
            walk.gather(self.memory, group.first_lane, operands[at])

    # ---- the vector unit

    def _vector(self, step: Vector) -> None:
        """Do all words at once; every read comes before any write."""
        base, words, count = step.scalars
        held = self._words(0, step.lanes, base, words)[..., : self.word].reshape(step.lanes, -1)
        operands = (self._operand(feed, step) for feed in step.operands)
        operation = OPERATIONS[step.operation]
        results = operation.values(operands, held[:, :count].T.copy(), step.coefficients)
        # `copy` and the like return views of the words that are about to be written.
        if np.may_share_memory(results, self.memory):
            results = results.copy()
        for group in step.writes.groups:
            _, walk = self._read_by(group)
            place = self._to_write(group.first_lane, group.lanes, walk.first, walk.stop - walk.first)
            walk.scatter(results[group.first_lane : group.first_lane + group.lanes], place)

    def _operand(self, feed: Feed, step: Vector) -> Values:
        """Words [lane, word, W] of an operand: a view if one group reads all of them, else a copy with zeros in lanes
        without a group.
        """
        width = self.memory.shape[2]
        if len(feed.groups) == 1 and feed.fills(step.lanes) and not feed.picks:
            group, walk = self._read_by(feed.groups[0])
            if walk.consecutive:
                return self.memory[group.first_lane : group.first_lane + group.lanes, walk.first : walk.stop]
        operand = np.zeros((step.lanes, step.words * width), self.memory.dtype)
        for group in feed.groups:
            place = operand[group.first_lane : group.first_lane + group.lanes]
            if isinstance(pattern := group.pattern, PickedWords):
                # Picked operands are put together element by element.
                table = pattern.table
                addresses = picked_by(self._words(0, 1, table.base, table.words * table.word_words)[0], pattern)
                word, element = (addresses != PADDING).nonzero()
                read = addresses[word, element]
                first, stop = (int(read.min()), int(read.max()) + 1) if read.size else (0, 0)
                words = self._words(group.first_lane, group.lanes, first, stop - first)
                picked = place.reshape(group.lanes, step.words, width)
                picked[:, word, element] = words[:, read - first, element]
            else:
                _, walk = self._read_by(group)
                walk.gather(self.memory, group.first_lane, place)
        return operand.reshape(step.lanes, step.words, width)

    def _read_by(self, group: LaneGroup) -> tuple[LaneGroup, Reads]:
        """The words that a lane group reads, when all sums that belong there are done."""
        if isinstance(pattern := group.pattern, Pointers):
            # The pointers are followed as they are in lane 0 at this step.
            walk = followed(self._words(0, 1, pattern.table.base, pattern.table.words)[0], pattern)
        else:
            walk = walk_of(pattern)
        self._words(group.first_lane, group.lanes, walk.first, walk.stop - walk.first)
        return group, walk
