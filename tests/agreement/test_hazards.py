"""No step of any lowering reads words before they are there, or overwrites what somebody has yet to read.

The engines would show it only where the clock happens to. Here each step may count on those alone that it waits for,
and that these waited for; passes follow one another, and so do preloads, fills and spills, each kind by itself.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from tests.agreement.test_agreement import IN_LANES, fitted, suppose
from tests.covering import covering
from tests.rules import rule
from tests.strategies import (
    GENERAL,
    OF_CELLS,
    cases,
    conv,
    machine,
    machines_of_all_kinds,
    small_layers,
    transposed_convs,
    with_resident_taps,
)
from tpusim.machines.tpu.description import Hardware
from tpusim.machines.tpu.lowering.registry import LOWERINGS
from tpusim.machines.tpu.program.addresses import BankFeed, Feed, PickedWords, Pointers, walked
from tpusim.machines.tpu.program.program import Program
from tpusim.machines.tpu.program.steps import Preload, Step, Stream, Vector
from tpusim.machines.tpu.program.transfers import BankFill, Fill, Keep, Spill
from tpusim.network.ops.array_op import ConvTranspose2d
from tpusim.network.ops.op import Op

MOST_STEPS = 400
BANKS = "banks"
Cells = tuple[Any, NDArray[np.int64]]
"""Lanes, or BANKS; and words of each of them."""


def assert_waits_matter(program: Program, hardware: Hardware, kind: type[Step]) -> None:
    """Nothing is missing, and something is once no step of a kind waits."""
    assert not [*hazards(program, hardware)]
    steps = tuple(replace(step, after=()) if isinstance(step, kind) else step for step in program.rows)
    assert any(hazards(replace(program, rows=steps), hardware))


def hazards(program: Program, hardware: Hardware) -> Iterator[str]:
    """What is wrong, step by step."""
    shape = hardware.lanes + 1, max(hardware.capacity_words, hardware.bank_words)
    # One more than the step, so that memory that nobody touches is never laid out.
    writer = np.zeros(shape, np.int32)
    readers = {kind: np.zeros(shape, np.int32) for kind in {type(step) for step in program.rows}}
    known = ancestors(program)
    for index, step in enumerate(program.rows):
        behind = known[index]
        for cells in read_by(program, index, step):
            place = where(*cells)
            for wanted in steps_of(writer, place) - {index}:
                if wanted < 0 or not behind >> wanted & 1:
                    yield f"step {index}, {step.label}, reads what step {wanted} writes, and does not wait for it"
            readers[type(step)][place] = index + 1
        for cells in written_by(step):
            place = where(*cells)
            before = set.union(*(steps_of(each, place) for each in (writer, *readers.values())))
            for other in before - {-1, index}:
                if not behind >> other & 1:
                    yield f"step {index}, {step.label}, overwrites what step {other} still uses"
            writer[place] = index + 1


def steps_of(table: NDArray[np.int32], place: Any) -> set[int]:
    """Those noted there; -1 where none is."""
    return {each - 1 for each in {*table[place].ravel().tolist()}}


def where(lanes: Any, words: NDArray[np.int64]) -> Any:
    """Banks are the last row of the table."""
    return (-1, words) if lanes is BANKS else np.ix_(lanes, words)


KINDS: tuple[tuple[type[Step], ...], ...] = ((Fill, BankFill), (Preload,), (Spill,), (Stream,), (Vector,), (Keep,))
"""Steps of a kind are over in their order."""


def ancestors(program: Program) -> list[int]:
    """The steps that are over when each begins, or before it is over itself; as bits."""
    found: list[int] = []
    last: dict[tuple[type[Step], ...], int] = {}
    for index, step in enumerate(program.rows):
        (kind,) = (kind for kind in KINDS if isinstance(step, kind))
        waits = [
            *step.after,
            *([step.preload] if isinstance(step, Stream) else []),
            *([last[kind]] if kind in last else []),
        ]
        last[kind] = index
        bits = 0
        for each in waits:
            bits |= found[each] | 1 << each
        found.append(bits)
    return found


def span(first: int, count: int) -> NDArray[np.int64]:
    return np.arange(first, first + count)


def written_by(step: Step) -> Iterator[Cells]:
    match step:
        case BankFill():
            for held in step.parts:
                yield BANKS, held.addresses.ravel()
        case Fill():
            for part in step.parts:
                for first in part.first_lanes:
                    yield span(first, part.lanes), span(part.base, part.words)
        case Stream():
            yield span(0, step.cols), span(step.result_base, step.words)
        case Vector():
            yield from walked_by(step.writes)
        case Spill():
            for number, part in enumerate(step.parts):
                for word in step.beside(number)[2]:
                    yield span(part.first_lanes[0], part.lanes), span(word, 1)


def beside(step: Fill | Spill) -> Iterator[Cells]:
    """What the vector unit reads for its work on the way."""
    begun = set[int]()
    for number, part in enumerate(step.parts):
        maps, numbers, tallies = step.beside(number)
        # What a part has begun, the next parts of the step add to.
        if step.work and step.work.begins[number]:
            begun |= {*tallies}
        for first in part.first_lanes:
            lanes = span(first, part.lanes)
            for base, turns in zip(maps, step.work.turns if step.work else (), strict=True):
                yield lanes, span(base, step.work.around[number] if step.work and turns else part.words)
            for word in (*numbers, *(each for each in tallies if each not in begun)):
                yield lanes, span(word, 1)


def read_by(program: Program, index: int, step: Step) -> Iterator[Cells]:
    match step:
        case Preload():
            yield span(0, step.cols), span(step.base, step.words)
            if step.bias is not None:
                yield span(0, step.cols), span(step.bias, 1)
        case Stream():
            yield from fed(program, index, step.reads)
            if step.accumulate:
                yield span(0, step.cols), span(step.result_base, step.words)
        case Vector():
            yield span(0, step.lanes), span(step.scalars.base, step.scalars.words)
            for operand in step.operands:
                yield from picked(program, index, operand) if operand.picks else walked_by(operand)
        case Fill():
            yield from beside(step)
        case Spill() | Keep():
            yield from beside(step) if isinstance(step, Spill) else ()
            for part in step.parts:
                if part.feed is not None:
                    yield from fed(program, index, part.feed)
                else:
                    yield span(part.first_lanes[0], part.lanes), span(part.base, part.words)


def walked_by(feed: Feed) -> Iterator[Cells]:
    for group in feed.groups:
        stored, addresses = walked(group.pattern)
        yield span(group.first_lane, group.lanes), np.unique(addresses[stored])


def fed(program: Program, index: int, feed: Feed) -> Iterator[Cells]:
    """What a feed reads, of pointers both they and the words they lead to."""
    if feed.table is not None:
        yield span(0, 1), span(feed.table.base, feed.table.words)
    for group in feed.groups:
        if isinstance(group.pattern, Pointers):
            words = followed(program, index, group.pattern)
        else:
            stored, addresses = walked(group.pattern)
            words = addresses[stored]
        yield (BANKS if isinstance(feed, BankFeed) else span(group.first_lane, group.lanes)), np.unique(words)


def picked(program: Program, index: int, feed: Feed) -> Iterator[Cells]:
    """The pointers by which elements are picked, and the words they lead to."""
    table = feed.picks
    assert table is not None
    yield span(0, 1), span(table.base, table.words * table.word_words)
    numbers = pointers(program, index, table.base).reshape(table.words, -1)[:, : table.pointers]
    each = numbers.reshape(table.words, table.operands, table.elements, table.together)
    for group in feed.groups:
        assert isinstance(group.pattern, PickedWords)
        mine = each[:, group.pattern.operand, :, group.pattern.which]
        yield span(group.first_lane, group.lanes), np.unique(group.pattern.base + mine[mine % 2 == 0] // 2)


def followed(program: Program, index: int, pattern: Pointers) -> NDArray[np.int64]:
    """The words that the pointers lead to, which the last fill of their table brought."""
    table = pattern.table
    mine = pointers(program, index, table.base).reshape(table.pixels, table.together)[:, pattern.which]
    first = pattern.base + mine[mine % 2 == 0] // 2
    return np.add.outer(first, np.arange(table.repeat)).ravel().astype(np.int64)


def pointers(program: Program, index: int, base: int) -> NDArray[np.int64]:
    """Those that the last fill of the table at `base` brought."""
    fill = next(
        step
        for step in reversed(program.rows[:index])
        if isinstance(step, Fill) and step.tensor.name == "pointers" and step.parts[0].base == base
    )
    numbers = next(each.values for each in program.constants if each.tensor == "pointers")
    return numbers[list(fill.parts[0].items[0].coordinates)].astype(np.int64)


# ---- every lowering


@rule("T54")
@pytest.mark.parametrize("name", sorted({*GENERAL, *OF_CELLS}))
@settings(max_examples=cases(1 / 40), deadline=None, suppress_health_check=list(HealthCheck))
@given(
    data=st.data(),
    batch=st.integers(1, 9),
    hardware=machines_of_all_kinds(16, st.sampled_from([1, 2, 4, 8])),
)
def test_every_step_waits_for_what_it_needs(name: str, data: st.DataObject, batch: int, hardware: Hardware) -> None:
    suppose(not (hardware.banked and name in IN_LANES))
    layer: Op = data.draw(transposed_convs() if name in OF_CELLS else small_layers())
    hardware = with_resident_taps(hardware) if name in OF_CELLS else hardware
    suppose(layer.macs(batch) / hardware.pes < 400)
    program, hardware = fitted(layer, batch, hardware, name)
    suppose(len(program.rows) < MOST_STEPS)
    assert not [*hazards(program, hardware)]


# ---- and what it would see


@pytest.mark.parametrize(
    ("name", "kind"),
    covering(1, sorted({*GENERAL, *OF_CELLS}), KINDS[:4]),
    ids=lambda each: each if isinstance(each, str) else each[0].__name__,
)
def test_no_kind_of_step_could_do_without_its_waits(name: str, kind: tuple[type[Step], ...]) -> None:
    """Of a layer in blocks that hardly fit."""
    hardware = machine(8, 8, word_elements=4, capacity_words=90)
    transposed = ConvTranspose2d("transposed", 4, 5, 5, 6, 3, 2, 1)
    layer = transposed if name in OF_CELLS else conv(4, 9, 6, 3, padding=1)
    program = LOWERINGS[name].lower(layer, 4, hardware)[0]
    assert not [*hazards(program, hardware)]
    steps = tuple(replace(step, after=()) if isinstance(step, kind) else step for step in program.rows)
    assert any(hazards(replace(program, rows=steps), hardware))


@rule("T32")
def test_a_pass_waits_for_its_pointers() -> None:
    """Its last wait is the fill of its table."""
    hardware = machine(8, 8, word_elements=4, capacity_words=120)
    program = LOWERINGS["indirect"].lower(conv(4, 9, 6, 3, padding=1), 4, hardware)[0]
    steps = (replace(each, after=each.after[:-1]) if isinstance(each, Stream) else each for each in program.rows)
    assert any(hazards(replace(program, rows=tuple(steps)), hardware))
