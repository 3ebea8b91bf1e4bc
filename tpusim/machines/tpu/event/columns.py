"""A Program as columns of whole numbers: everything that its time depends on, and nothing else.

A row tells of a step what it is, whose it is, and what it waits for. What many steps do alike is said once, in a
*recipe*. Engines read these tables; what they find out about each step, they write into the tables of a `Log`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cache
from itertools import accumulate, pairwise
from typing import Any, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from tpusim.machines.tpu.definition import Frame, last_weight
from tpusim.machines.tpu.description import Hardware
from tpusim.machines.tpu.event.conflicts import ConflictCounter, Conflicts
from tpusim.machines.tpu.program.addresses import PointerTable
from tpusim.machines.tpu.program.program import Program
from tpusim.machines.tpu.program.steps import Step, Stream, Vector
from tpusim.machines.tpu.program.tensors import HBM
from tpusim.machines.tpu.program.transfers import KINDS, BankFill, LaneTransfer, Spill, Transfer

Numbers: TypeAlias = NDArray[np.int64]
Records: TypeAlias = NDArray[Any]
"""A table: an array of records, whose fields are columns, table["words"]."""

PRELOAD, STREAM, VECTOR_STEP, FILL, SPILL, PREFETCH, BANK_FILL, KEEP = range(8)
"""Kinds of steps, by their numbers among KINDS of `program/transfers.py`."""


class Row:
    """A step.

    Attributes:
        kind: kind of the step.
        array: array that takes the step; -1 for steps that are not preloads or streams.
        pace: number of its frame among those of the Program.
        recipe: number in the table of recipes of its kind.
        preload: for a stream, the step that loads its weights.
        waits, waits_end: range in the table of waits.
        number: number among the steps of its kind, where all transfers are of one kind.
    """

    kind: int
    array: int
    pace: int
    recipe: int
    preload: int
    waits: int
    waits_end: int
    number: int


class Wait:
    """A step that another step waits for.

    Attributes:
        step: number of the step.
        data: whether it brings data, so that the wait for it is a wait for what holds the fill.
        stored: whether all of it must be in the memory behind the lanes, not only taken from the lanes.
    """

    step: int
    data: bool
    stored: bool


class LoadRecipe:
    """What a preload does: it begins `delay` cycles late, and loads a word of biases if `bias` is 1."""

    delay: int
    bias: int


class PassRecipe:
    """What a stream does.

    Attributes:
        words: words that a lane streams.
        accumulate, finish: whether it adds to partial sums, and whether it finishes its results.
        conflicts: number of its conflicts of banks, -1 for none.
        table: number of its pointers, -1 for none.
    """

    words: int
    accumulate: int
    finish: int
    conflicts: int
    table: int


class WorkRecipe:
    """What a vector step does, in cycles and words of lane 0.

    Attributes:
        words: words that it makes.
        delay: cycles by which it begins late.
        scalars: words of scalars that it reads first.
        together, period: words that a turn makes, and cycles from a turn to the next.
        result_delay: cycles from the first read of a turn to its first write.
        last: cycles from the first read of an operand to the last write.
        reads, writes: cycles in which a whole turn reads, and writes.
        reads_rest, writes_rest: cycles in which the last turn reads and writes, if it is not whole.
        busy: cycles of the vector unit in all.
    """

    words: int
    delay: int
    scalars: int
    together: int
    period: int
    result_delay: int
    last: int
    reads: int
    reads_rest: int
    writes: int
    writes_rest: int
    busy: int


class MoveRecipe:
    """What a transfer does.

    Attributes:
        bus: number of its bus among `Hardware.pipes`.
        words: words that lane 0, or the fullest bank, moves.
        moving: cycles of the bus to move the bytes.
        busy: cycles of the bus, if nothing but the bus or the conversion of words holds it up.
        parts, parts_end: range in the table of parts.
        accesses: cycles of the port: words, and what the work on them reads and writes beside.
        served: whether a DRAM with banks serves it.
        least: least cycles for which it keeps the next transfer from the bus.
    """

    bus: int
    words: int
    moving: int
    busy: int
    parts: int
    parts_end: int
    accesses: int
    served: int
    least: int


class MovedPart:
    """A part of a transfer: its words, and the accesses of the work on them.

    Before the first word lane 0 reads `ahead` words, before each word `beside`, and behind the last word it writes
    `behind` words.
    """

    words: int
    ahead: int
    beside: int
    behind: int


class ArrayPace:
    """A frame, as one array sees it: a row for each frame and array.

    Attributes:
        period: cycles of the frame.
        psum_delay, result_delay: cycles from the read of an ifmap word to that of its partial sum, and to the write of
            its result.
        together: arrays that take the words of a stream in turn.
        turns: the first of `period` entries in the table of turns; -1 where weights may take every free cycle.
        pointer_slot: first slot of pointers.
    """

    period: int
    psum_delay: int
    result_delay: int
    together: int
    turns: int
    pointer_slot: int


class LostFrames:
    """Conflicts of banks in a pass: frames lost, and ranges of the cycles in which banks are read and words delivered,
    both counted from the pass's first slot on.
    """

    frames: int
    reads: int
    reads_end: int
    words: int
    words_end: int


class PointerReads:
    """The range of the pointer words that a pass reads."""

    words: int
    words_end: int


class MachineRow:
    """What every step of a kind shares.

    Attributes:
        preload_words: words that a preload reads.
        weight_word_cycles: least cycles between two of them.
        last_weight: cycles from the read of the last one until its last weight is in the array.
        weight_buffers: 1, or 2 where a preload may begin while the pass before streams.
        skew: cycles by which the last lane runs behind lane 0.
        launch: cycle in which the first transfer may begin.
    """

    preload_words: int
    weight_word_cycles: int
    last_weight: int
    weight_buffers: int
    skew: int
    launch: int


@cache
def record_of(row: Any) -> np.dtype[Any]:
    """Type of a record with the fields of a row: truths and numbers."""
    # There may be millions of these two, and neither tells of cycles.
    types = {"int": np.int32 if row in (Row, Wait) else np.int64, "bool": np.bool_}
    return np.dtype([(name, types[of]) for name, of in row.__annotations__.items()])


class Columns(NamedTuple):
    """What engines read of a Program on a machine.

    Attributes:
        rows: a Row for each step.
        waits: a Wait for each of a row, those of a row side by side.
        order: int64, numbers of the steps that each array takes, in their order; vector steps are in all of them.
        orders: int64[arrays + 1], where the order of each array begins in `order`.
        transfers, keeps: int64, numbers of transfers, and of Keeps.
        loads, passes, works, moves: recipes of each kind.
        parts: MovedParts.
        paces: ArrayPaces, row `pace * arrays + array`.
        turns: int64, cycles that a preload must leave to others from each cycle of a frame on.
        conflicts: LostFrames.
        bank_reads, delivered: int64, cycles of conflicts.
        tables: PointerReads.
        pointer_frames, pointer_places: int64, of each pointer word the frame of the pass that first needs it, and its
            place in the slots of the frame before.
        machine: a MachineRow.
        latency: int64[buses], latency of each bus in cycles.
        port_of: int64, port of each client of `definition.CLIENTS`.
    """

    rows: Records
    waits: Records
    order: Numbers
    orders: Numbers
    transfers: Numbers
    keeps: Numbers
    loads: Records
    passes: Records
    works: Records
    moves: Records
    parts: Records
    paces: Records
    turns: Numbers
    conflicts: Records
    bank_reads: Numbers
    delivered: Numbers
    tables: Records
    pointer_frames: Numbers
    pointer_places: Numbers
    machine: Records
    latency: Numbers
    port_of: Numbers

    @property
    def arrays(self) -> int:
        """The number of arrays with weights of their own."""
        return len(self.orders) - 1

    def steps(self, kind: int) -> Numbers:
        """Numbers of the steps of a kind."""
        return np.flatnonzero(self.rows["kind"] == kind)


ROWS: Mapping[str, Any] = {
    "rows": Row, "waits": Wait, "loads": LoadRecipe, "passes": PassRecipe, "works": WorkRecipe, "moves": MoveRecipe,
    "parts": MovedPart, "paces": ArrayPace, "conflicts": LostFrames, "tables": PointerReads, "machine": MachineRow,
}  # fmt: skip
"""Rows of those columns that are tables; all others are int64."""


def columns_of(program: Program, hardware: Hardware) -> Columns:
    """The columns of a Program on a machine."""
    table, recipes, frames = program.rows.table, program.rows.recipes, program.frames(hardware)
    mine, delays = table["recipe"].astype(np.int64), table["delay"].astype(np.int64)
    kinds = program.rows.kinds
    transfers, keeps = np.flatnonzero((kinds >= FILL) & (kinds <= BANK_FILL)), np.flatnonzero(kinds == KEEP)
    preloads, streams, vectors = (np.flatnonzero(kinds == kind) for kind in (PRELOAD, STREAM, VECTOR_STEP))
    rows = np.zeros(len(kinds), record_of(Row))
    rows["kind"], rows["array"], rows["pace"] = kinds, table["array"], program.numbers_of_paces
    rows["waits"], rows["waits_end"] = table["waits"], program.rows.ends
    rows["preload"][streams] = table["preload"][streams]
    for numbers in (preloads, streams, vectors, transfers, keeps):
        rows["number"][numbers] = np.arange(len(numbers))

    def said_once(steps: Numbers, beside: Numbers, told: Callable[[Any, int, int], Fields]) -> list[Fields]:
        """What is `told` of steps, by their recipe and one more number, each once; rows get the numbers."""
        _, first, whose = np.unique(mine[steps] << 32 | beside[steps], return_index=True, return_inverse=True)
        numbers, found = _each_once(told(recipes[mine[at]], int(beside[at]), at) for at in steps[first].tolist())
        rows["recipe"][steps] = _numbers(numbers)[whose]
        return found

    counters = [ConflictCounter(hardware, frame.period) for frame in frames]
    conflicts, tables = dict[Conflicts, int](), dict[tuple[PointerTable, int], int]()

    def pass_of(step: Stream, pace: int) -> Fields:
        lost, table = counters[pace].of(step), step.reads.table
        # The base address of pointers does not affect time.
        pointed = table and (table._replace(base=0), frames[pace].together)
        own = step.words, step.accumulate, bool(step.finish)
        costs = -1 if lost is None else conflicts.setdefault(lost, len(conflicts))
        return *own, costs, -1 if pointed is None else tables.setdefault(pointed, len(tables))

    loads = said_once(preloads, delays, lambda step, delay, _: (delay, step.bias_words))
    passes = said_once(streams, rows["pace"], lambda step, pace, _: pass_of(step, pace))
    works = said_once(vectors, delays, lambda step, delay, at: _work(step, delay, program.fill_of(at), hardware))
    numbers_of_moves, moves, parts = _moves(recipes, hardware)
    rows["recipe"][transfers] = numbers_of_moves[mine[transfers]]

    waits = np.zeros(len(program.rows.waits), record_of(Wait))
    waits["step"] = program.rows.waits
    waits["data"] = _BRINGS_DATA[kinds[waits["step"]]]
    written = [each.written if isinstance(each, Transfer) else None for each in recipes]
    writes = [each.name if each else "" for each in written]
    for at in transfers[_reading(program)[mine[transfers]]].tolist():
        behind = slice(rows["waits"][at], rows["waits_end"][at])
        made = program.makers[recipes[mine[at]].tensor.name]
        waits["stored"][behind] = [writes[each] in made for each in mine[waits["step"][behind]].tolist()]

    orders = [
        np.flatnonzero((kinds == VECTOR_STEP) | (rows["array"] == array)) for array in range(hardware.array.queues)
    ]
    pace_rows, turns = _paces(frames, hardware)
    port_of = np.zeros(8, np.int64)
    for number, clients in enumerate(program.ports(hardware)):
        port_of[list(clients)] = number
    machine = (
        hardware.preload_words, hardware.weight_word_cycles, last_weight(0, hardware), hardware.array.weight_buffers,
        hardware.skew, hardware.sequencer.launch_cycles,
    )  # fmt: skip
    reading, bank_reads = _side_by_side([each.reads for each in conflicts])
    delivering, delivered = _side_by_side([each.delivered for each in conflicts])
    pointers = [table.reads(together) for table, together in tables]
    reads, pointer_frames = _side_by_side([at for at, _ in pointers])
    return Columns(
        rows, waits, np.concatenate(orders), _numbers([0, *np.cumsum([*map(len, orders)])]), transfers, keeps,
        _table(loads, LoadRecipe), _table(passes, PassRecipe), _table(works, WorkRecipe), _table(moves, MoveRecipe),
        _table(parts, MovedPart), pace_rows, turns,
        _table([(lost.frames, *a, *b) for lost, a, b in zip(conflicts, reading, delivering, strict=True)], LostFrames),
        bank_reads, delivered, _table(reads, PointerReads), pointer_frames,
        np.concatenate([_numbers([]), *(places for _, places in pointers)]), _table([machine], MachineRow),
        _numbers([pipe.latency for pipe in hardware.pipes.values()]), port_of,
    )  # fmt: skip


def _reading(program: Program) -> NDArray[np.bool_]:
    """Recipes that read what steps of the Program have brought to their memory. A spill reads nothing there."""
    made = program.makers
    reads = (
        isinstance(each, Transfer) and not isinstance(each, Spill) and each.tensor.name in made
        for each in program.rows.recipes
    )  # fmt: skip
    return np.fromiter(reads, np.bool_)


_BRINGS_DATA = np.array([kind in (FILL, PREFETCH, BANK_FILL) for kind in range(8)], np.int64)


def _numbers(numbers: Iterable[int]) -> Numbers:
    return np.array([*numbers], np.int64)


def _table(rows: Iterable[Sequence[int]], row: Any) -> Records:
    """A table of rows, each with the fields of a record."""
    record = record_of(row)
    return np.array([*rows], np.int64).reshape(-1, len(record.names or ())).view(record).ravel()


def _side_by_side(parts: Sequence[Numbers]) -> tuple[list[tuple[int, int]], Numbers]:
    """The range of each part in all of them, and all of them."""
    ends = [*accumulate(map(len, parts), initial=0)]
    return [*pairwise(ends)], np.concatenate([_numbers([]), *parts])


Fields: TypeAlias = tuple[int, ...]


def _each_once(rows: Iterable[Fields]) -> tuple[list[int], list[Fields]]:
    """The number of each row among the different ones, and these."""
    known: dict[Fields, int] = {}
    return [known.setdefault(row, len(known)) for row in rows], [*known]


def _work(step: Vector, delay: int, fill: int, hardware: Hardware) -> Fields:
    """The recipe of a vector step that begins late, with `fill` elements of a word in use."""
    beat = step.beat(fill, hardware)
    rest = step.words % beat.together
    return (
        step.words, delay + beat.body, step.scalars.words, beat.together, beat.period, beat.result_delay,
        beat.last(step.words), beat.reads(beat.together), beat.reads(rest), beat.writes(beat.together),
        beat.writes(rest), beat.turns(step.words) * beat.work,
    )  # fmt: skip


def _moves(recipes: Sequence[Step], hardware: Hardware) -> tuple[Numbers, list[Fields], list[Fields]]:
    """The number of what each recipe moves, what is moved, each once, and its parts; 0 for what is no transfer."""
    known, rows, parts, pipes = dict[Fields, int](), list[Fields](), list[Fields](), hardware.pipes
    buses, numbers = [*pipes], list[int]()
    for step in recipes:
        if not isinstance(step, Transfer):
            numbers.append(0)
            continue
        # Tensors and work are shared by the steps of a layer, and live as long as the Program does.
        key: Fields = KINDS.index(type(step)), step.words, step.hbm_bytes, id(step.tensor)
        if isinstance(step, LaneTransfer) and step.work:
            key = *key, id(step.work), *(part.words for part in step.parts)
        elif isinstance(step, BankFill):
            # The vector unit unpacks the words of all banks, not only those of the fullest one.
            key = *key, step.lane_words
        numbers.append(known.setdefault(key, len(rows)))
        if len(known) == len(rows):
            continue
        moving, conversion = pipes[step.bus].cycles(step.hbm_bytes), step.conversion_cycles(hardware)
        mine = [*_parts(step)]
        accesses = sum(ahead + words * (1 + beside) + behind for words, ahead, beside, behind in mine)
        busy, served = max(moving, conversion), bool(hardware.hbm.dram) and step.bus == HBM.bus
        # Bursts of a fill may be accepted long before they are done.
        least = max(1, conversion) if served and not isinstance(step, Spill) else busy
        place = len(parts), len(parts) + len(mine)
        rows.append((buses.index(step.bus), step.words, moving, busy, *place, accesses, served, least))
        parts += mine
    return _numbers(numbers), rows, parts


def _parts(step: Transfer) -> Iterator[Fields]:
    """Parts of a transfer, in the fields of MovedPart; without work one will do."""
    if not isinstance(step, LaneTransfer) or step.work is None:
        yield step.words, 0, 0, 0
        return
    for number, part in enumerate(step.parts):
        maps, kept, tallies = map(len, step.beside(number))
        yield part.words, kept + (0 if step.work.begins[number] else tallies), maps, tallies


def _paces(frames: Sequence[Frame], hardware: Hardware) -> tuple[Records, Numbers]:
    """The frame of each pace on each array, and the cycles that its preloads leave to others."""
    rows, turns = list[tuple[int, ...]](), list[int]()
    for frame in frames:
        for array in range(hardware.array.queues):
            first = -1
            if frame.pointer_slots or hardware.array.queues > 1:
                first = len(turns)
                turns += frame.weight_waits(array)
            delays = frame.psum_delay, frame.result_delay
            rows.append((frame.period, *delays, frame.together, first, frame.pointer_slots.start))
    return _table(rows, ArrayPace), _numbers(turns)
