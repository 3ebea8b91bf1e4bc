"""Checks of everything that interpreters take for granted about a Program, because a lowering may be wrong."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from math import prod
from typing import Any, TypeAlias

import numpy as np

from tpusim.base.errors import CheckFailed
from tpusim.machines.tpu.description import Hardware
from tpusim.machines.tpu.program.addresses import BankFeed, Counters, Feed, PickedWords, Pointers
from tpusim.machines.tpu.program.operations import OPERATIONS, Arity
from tpusim.machines.tpu.program.program import Program
from tpusim.machines.tpu.program.steps import Preload, Step, Stream, Vector
from tpusim.machines.tpu.program.tensors import HBM, SCRATCH
from tpusim.machines.tpu.program.transfers import (
    PRODUCTS,
    BankFill,
    InboundTransfer,
    Keep,
    LaneTransfer,
    Part,
    Prefetch,
    Spill,
    Transfer,
)


def check_program(program: Program, hardware: Hardware) -> None:
    """Check every recipe once, and every row by its columns.

    Raises:
        CheckFailed: when a step names lanes, rows, columns or words that the machine does not have, or contradicts
        itself.
    """
    if program.words > hardware.capacity_words:
        raise CheckFailed(f"the Program takes {program.words} words a lane; the machine has {hardware.capacity_words}")
    if program.bank_words > hardware.bank_words:
        raise CheckFailed(f"the Program takes {program.bank_words} words of banks; there are {hardware.bank_words}")
    if program.word_cycles < 0:
        raise CheckFailed(f"the Program makes words ready in {program.word_cycles} cycles")
    rows = program.rows
    widest = program.widest_word(hardware.vector_memory.word_elements)
    picked = {step.picks.per_word for step, _ in rows.done(Vector) if step.picks}
    # The vector unit has one reader of pointers, with one size of pointer.
    if len(picked) > 1:
        raise CheckFailed("steps pick elements by pointers of several sizes")
    for per_word in (*picked, *(table.per_word for table in program.tables)):
        if per_word > widest:
            raise CheckFailed(f"a step reads {per_word} pointers a word; no word holds more than {widest} numbers")
    if lost := {step.bus for step, _ in rows.done(Transfer)} - hardware.pipes.keys():
        raise CheckFailed(f"transfers need a bus of {' and '.join(sorted(lost))}; there is {', '.join(hardware.pipes)}")
    limits = {"row": hardware.array.rows, "column": hardware.array.cols, "lane": hardware.lanes}
    done, firsts = np.unique(rows.table["recipe"], return_index=True)
    for number, at in zip(done.tolist(), firsts.tolist(), strict=True):
        step = rows.recipes[number]
        for what, first, stop in _named(step):
            if first < 0 or stop > limits[what]:
                raise CheckFailed(
                    f"step {at} ({step.label}) names {what}s [{first}, {stop}); the machine has {limits[what]}"
                )
        for wrong in _contradictions(step, hardware):
            raise CheckFailed(f"step {at} ({step.label}) {wrong}")
    for at, wrong in _wrong_rows(program, hardware):
        raise CheckFailed(f"step {at} ({rows[at].label}) {wrong}")
    # Checks of the Program as a whole come last, as they assume sound steps.
    for wrong in _crowded(program, hardware):
        raise CheckFailed(wrong)


def _wrong_rows(program: Program, hardware: Hardware) -> Iterator[tuple[int, str]]:
    """Problems of rows, each with its number, as the end of a sentence."""
    rows, table, queues = program.rows, program.rows.table, hardware.array.queues
    recipes, arrays, loads, streams = table["recipe"], table["array"], rows.are(Preload), rows.are(Stream)
    sizes = rows.told(lambda each: (each.rows, each.cols) if isinstance(each, Preload | Stream) else (0, 0))
    pointed = rows.told(lambda each: isinstance(each, Stream) and each.reads.table is not None)
    late = np.flatnonzero(table["delay"] < 0)
    yield from ((at, f"begins {-table['delay'][at]} cycles before it can") for at in late.tolist())
    for at in np.flatnonzero(loads & ((arrays < 0) | (arrays >= queues))).tolist():
        yield at, f"is for array {arrays[at]}; the machine has {queues} with weights of their own"
    for at in np.flatnonzero(streams).tolist():
        loaded = int(table["preload"][at])
        if not 0 <= loaded < len(rows) or not loads[loaded] or (sizes[loaded] != sizes[at]).any():
            yield at, "uses {} x {} weights that step {} does not load".format(*sizes[at].tolist(), loaded)
        elif arrays[loaded] and pointed[at]:
            yield at, f"reads pointers for array {arrays[loaded]}; they are read for the first array alone"
    fills = np.array([each.word_fill for each in program.all_paces])[program.numbers_of_paces]
    vectors = np.flatnonzero(rows.are(Vector))
    _, firsts = np.unique(recipes[vectors].astype(np.int64) << 32 | fills[vectors], return_index=True)
    for at in vectors[firsts].tolist():
        step = rows.recipes[recipes[at]]
        assert isinstance(step, Vector)
        yield from ((at, wrong) for wrong in _unworkable(step, int(fills[at]), hardware))
    made = program.makers
    reading = rows.told(lambda each: isinstance(each, InboundTransfer | Prefetch) and each.tensor.name in made)
    for at in np.flatnonzero(reading).tolist():
        if isinstance(step := rows[at], Transfer) and not program.sources(step):
            yield at, f"reads a {step.tensor.name} that it does not wait for"


# ---- one check a kind of step: the rows, columns and lanes that it names, and its problems as ends of a sentence

NamedLayers: TypeAlias = Iterator[tuple[str, int, int]]
"""(kind, first, past the last) of rows, columns or lanes."""


def _named(step: Step) -> NamedLayers:
    """The rows, columns and lanes that a step names."""
    match step:
        case Stream():
            yield "column", 0, step.cols
            yield from _lanes_of("row", step.reads)
        case Preload():
            yield "column", 0, step.cols
            yield "row", 0, step.rows
        case Vector():
            for feed in (*step.operands, step.writes):
                yield from _lanes_of("lane", feed)
        case LaneTransfer() | Keep():
            for part in step.parts:
                yield from (("lane", first, first + part.lanes) for first in part.first_lanes)


def _lanes_of(kind: str, feed: Feed) -> NamedLayers:
    return ((kind, group.first_lane, group.first_lane + group.lanes) for group in feed.groups)


def _contradictions(step: Step, hardware: Hardware) -> Iterator[str]:
    """Problems of a recipe: of each kind that it is of."""
    for kind, problems in _PROBLEMS.items():
        if isinstance(step, kind):
            yield from problems(step, hardware)


def _of_stream(step: Stream, hardware: Hardware) -> Iterator[str]:
    yield from _misfits(step.reads, step.words)
    if any(group.first_lane >= step.rows for group in step.reads.groups):
        yield f"feeds rows beyond its {step.rows}"
    for operation, coefficients in step.finish:
        if operation not in OPERATIONS or not OPERATIONS[operation].fits(Arity(1, 0, len(coefficients))):
            yield f"is to finish results by {operation} with {len(coefficients)} coefficients"
    banks = hardware.banks
    if isinstance(step.reads, BankFeed) != (banks > 0):
        where = "reads from the lanes, and the ifmap is in banks", "reads from banks, and there are none"
        yield where[not banks]
    if step.reads.picks:
        yield "picks elements; only the vector unit does"
    if banks and step.reads.table:
        yield "reads banks through pointers, which lead to words of lanes"


def _of_preload(step: Preload, hardware: Hardware) -> Iterator[str]:
    if step.words != -(-step.rows // hardware.vector_memory.word_elements):
        yield f"reads {step.words} words for {step.rows} weights"


def _of_keep(step: Keep, _: Hardware) -> Iterator[str]:
    if any(part.feed is not None or len(part.first_lanes) != 1 for part in step.parts):
        yield "keeps words that do not follow one another, or copies"


def _of_transfer(step: Transfer, hardware: Hardware) -> Iterator[str]:
    if any(len({len(each.coordinates) for each in part.lane}) != 1 for part in step.parts):
        yield "counts its lanes in two ways"
    most = hardware.word_bytes // (step.tensor.number_bytes or hardware.vector_memory.element_bytes)
    if any(not 0 < part.per_word <= most for part in step.parts):
        yield f"puts more elements into a word than its {most}"
    for part in step.parts:
        if isinstance(part, Part) and part.feed:
            # Only spills have addresses of their own, and then for all of their lanes.
            if not isinstance(step, Spill) or part.first_lanes != (0,) or not part.feed.fills(part.lanes):
                yield f"has addresses for other lanes than the {part.lanes} that it spills"
            if part.feed.table or part.feed.picks:
                yield "spills through pointers; only passes read them"
            yield from _misfits(part.feed, part.words)


def _of_spill(step: Spill, _: Hardware) -> Iterator[str]:
    if any(len(part.first_lanes) > 1 for part in step.parts):
        yield "takes one element from several lanes"


def _of_prefetch(step: Prefetch, _: Hardware) -> Iterator[str]:
    if (step.bus, step.to.place.bus) != (HBM.bus, SCRATCH.bus):
        yield "brings nothing from HBM to the scratch memory"


def _of_lane_transfer(step: LaneTransfer, _: Hardware) -> Iterator[str]:
    """Problems of the work on a transfer's words."""
    if (work := step.work) is None:
        return
    every = [(each.operation, each.counts) for each in work.chain]
    for operation, counts in (*every, *((each, work.tally_arity(each)) for each in work.tallies)):
        if operation not in OPERATIONS or not OPERATIONS[operation].fits(counts):
            yield f"works on words by {operation} of {counts.operands} operands and {counts.scalars} numbers"
    wanted = work.maps + work.numbers + len(work.tallies)
    if {len(words) for words in work.words} != {wanted} or not len(work.words) == len(work.begins) == len(step.parts):
        yield f"names other words beside its parts than the {wanted} of each"
    if any(work.turns) and (len(work.around) != len(step.parts) or min(work.around) < 1):
        yield "does not say after how many words those that are met in turn come again"
    if work.tallies.count(PRODUCTS) > work.maps:
        yield "tallies products with a map that it does not have"
    if work.tallies and not isinstance(step, Spill):
        yield "tallies words that come; only those that go are tallied"
    if any(part.feed for part in step.parts):
        yield "works on words that do not follow one another"


def _of_bank_fill(step: BankFill, hardware: Hardware) -> Iterator[str]:
    """Problems of a fill of banks: banks that the machine lacks, and offsets that do not match the words."""
    if step.banks != hardware.banks:
        yield f"fills {step.banks} banks, and there are {hardware.banks}"
    for part in step.parts:
        held = prod(len(each.coordinates) for each in part.items[len(part.offsets) - 1 :])
        counts = (len(part.lane[0].coordinates), *(len(each.coordinates) for each in part.items))
        if held != part.per_word or any(len(each) != count for each, count in zip(part.offsets, counts, strict=False)):
            yield "has offsets for other words than it fills"


_PROBLEMS: dict[type[Step], Callable[[Any, Hardware], Iterator[str]]] = {
    Stream: _of_stream,
    Preload: _of_preload,
    Keep: _of_keep,
    Spill: _of_spill,
    Transfer: _of_transfer,
    Prefetch: _of_prefetch,
    BankFill: _of_bank_fill,
    LaneTransfer: _of_lane_transfer,
}
"""Problems of a step of each kind, in the order in which they are told."""


def _crowded(program: Program, hardware: Hardware) -> Iterator[str]:
    """Problems of the scratch memory: tensors that do not fit, or take bytes that another tensor still needs."""
    if not any(each.place.base is not None for each in program.tensors):
        return
    capacity = hardware.scratch_memory.capacity_bytes if hardware.scratch_memory else 0
    home = {each.tensor: each.sources[0] for each in program.handed}
    for each in program.handed:
        place = program.tensor(each.tensor).place
        if place.bus and any(program.tensor(source).place != place for source in each.sources):
            yield f"{each.tensor} does not lie where {' and '.join(each.sources)} is"
    steps: dict[str, list[int]] = {}
    prefetched = {step.to.name for step, _ in program.rows.done(Prefetch) if step.to.place.base is not None}
    for number, step in enumerate(program.rows.recipes):
        for tensor in {step.tensor, step.written} if isinstance(step, Transfer) else ():
            if tensor and tensor.place.base is not None:
                used = np.flatnonzero(program.rows.table["recipe"] == number).tolist()
                steps.setdefault(home.get(tensor.name, tensor.name), []).extend(used)
    # A tensor lives from the first step that uses it to the last.
    lives = [(program.tensor(name), range(min(used), max(used) + 1)) for name, used in steps.items()]
    for at, (tensor, life) in enumerate(lives):
        area = tensor.extent(hardware.element_bytes)
        if area.stop > capacity:
            yield f"{tensor.name} takes bytes {area.start} to {area.stop} of a scratch memory of {capacity}"
        for other, others in lives[:at]:
            # Two tensors may follow one another in the same bytes, because transfers of lanes take the bus in order; a
            # prefetch has no such order with a fill that still reads.
            apart = not meet(life, others) and tensor.name not in prefetched and other.name not in prefetched
            if meet(area, other.extent(hardware.element_bytes)) and not apart:
                yield f"{tensor.name} and {other.name} take the same bytes of the scratch memory at once"


def meet(one: range, other: range) -> bool:
    """Whether two ranges overlap."""
    return one.start < other.stop and other.start < one.stop


def _unworkable(step: Vector, elements: int, hardware: Hardware) -> Iterator[str]:
    """Problems of a vector step; it picks `elements` a word, by one table, for operands only."""
    most, word_elements = hardware.vector_unit.scalar_words, hardware.vector_memory.word_elements
    if step.operation not in OPERATIONS:
        yield f"is to {step.operation}; the vector unit knows {', '.join(OPERATIONS)}"
    elif not OPERATIONS[step.operation].fits(step.counts):
        operands, scalars, coefficients = step.counts
        yield f"is to {step.operation} {operands} operands by {scalars} scalars and {coefficients} coefficients"
    if step.words < 1:
        yield f"makes {step.words} words"
    if step.scalars.words != -(-step.scalars.numbers // word_elements):
        yield f"reads {step.scalars.words} words for {step.scalars.numbers} scalars"
    if step.scalars.words > most:
        yield f"keeps {step.scalars.words} words of scalars, and a lane has room for {most} (vector_unit.scalar_words)"
    for feed in (*step.operands, step.writes):
        if isinstance(feed, BankFeed) or feed.table:
            yield "reads or writes banks, or words through pointers; it knows the words of lanes, and picks elements"
        yield from _misfits(feed, step.words)
    if step.writes.picks:
        yield "writes words of which it picks elements"
    for feed in step.operands:
        for group in feed.groups:
            if isinstance(group.pattern, PickedWords) != bool(feed.picks):
                yield "picks elements in some lanes of an operand, and reads words in others"
            elif isinstance(group.pattern, PickedWords):
                table, operand, which = group.pattern[:3]
                if table != step.picks or table.elements != elements:
                    yield f"picks by several tables, or {table.elements} of {elements} elements"
                if not (0 <= operand < table.operands and 0 <= which < table.together):
                    yield f"picks by pointer {which} of operand {operand}, which its table does not have"


def _misfits(reads: Feed, words: int) -> Iterator[str]:
    """Problems of patterns: as long as neither pass nor part, or not moving forward."""
    for group in reads.groups:
        if group.pattern.words != words:
            yield f"moves {words} words, and lane {group.first_lane} reads {group.pattern.words}"
        match group.pattern:
            case Counters(base, counters, window):
                if any(each.step < 1 for each in counters):
                    yield "has a counter that does not move forward"
                if window is not None and not 0 <= window.start < window.stop <= Counters(base, counters).words:
                    yield "walks positions that its counters do not have"
            case Pointers(table, which):
                if table != reads.table:
                    yield "reads through several tables of pointers; there is one reader"
                if not 0 <= which < table.together:
                    yield f"reads through pointer {which} of {table.together}"
