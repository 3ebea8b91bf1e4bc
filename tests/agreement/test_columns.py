"""The check and the reference read rows by themselves: one wrong number in a column is found."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import islice

import numpy as np
import pytest

from tests.agreement.test_hazards import ancestors, hazards
from tests.checks import check_layer
from tests.strategies import conv, machine
from tpusim.base.errors import CheckFailed, DeadlockError
from tpusim.machines.tpu import event
from tpusim.machines.tpu.lowering.convolution import CHANNEL_FIRST
from tpusim.machines.tpu.program.program import Program
from tpusim.machines.tpu.program.rows import Rows

LAYER, BATCH = conv(6, 6, 7, 3), 2
MACHINE = machine(4, 4, capacity_words=60)
PROGRAM = CHANNEL_FIRST.lower(LAYER, BATCH, MACHINE)[0]
ROWS = PROGRAM.rows
MUTANTS = 4
"""Programs of a kind; more where any of several numbers may be off."""


def with_rows(rows: Rows) -> Program:
    return replace(PROGRAM, rows=rows)


def with_column(name: str, at: int, number: int) -> Program:
    """One number of a column is another."""
    table = ROWS.table.copy()
    table[name][at] = number
    return with_rows(Rows(table, ROWS.recipes, ROWS.slots, ROWS.waits, ROWS.origins))


def a_wait_less(dice: np.random.Generator) -> Iterator[Program]:
    """A row does not wait for a row, and waits for none that has waited for it."""
    for place in dice.permutation(len(ROWS.waits)).tolist():
        at, wanted = int(np.searchsorted(ROWS.ends, place, "right")), int(ROWS.waits[place])
        table = ROWS.table.copy()
        table["waits"][at + 1 :] -= 1
        program = with_rows(Rows(table, ROWS.recipes, ROWS.slots, np.delete(ROWS.waits, place), ROWS.origins))
        if not ancestors(program)[at] >> wanted & 1:
            yield program


def a_slot_moved(dice: np.random.Generator) -> Iterator[Program]:
    """A slot of a row begins a word later, or earlier."""
    used = np.unique(ROWS.table["slots"])
    for place in dice.permutation(len(ROWS.slots)).tolist():
        first = used[np.searchsorted(used, place, "right") - 1]
        # Rows of one unit share their slots, and each recipe uses some of them.
        steps = (ROWS[at] for at in np.flatnonzero(ROWS.table["slots"] == first).tolist())
        rows = ([*step.words_read, *step.words_written] for step in steps)
        if any(words for row in rows for words in row if words.start <= ROWS.slots[place] < words.stop):
            slots = [*ROWS.slots]
            slots[place] += int(dice.choice([-1, 1]))
            yield with_rows(ROWS.placed(slots))


def a_recipe_exchanged(dice: np.random.Generator) -> Iterator[Program]:
    """A row does what another of its kind does."""
    mine = ROWS.table["recipe"]
    for at in dice.permutation(len(ROWS)).tolist():
        kin = [n for n, each in enumerate(ROWS.recipes) if type(each) is type(ROWS.recipes[mine[at]]) and n != mine[at]]
        if kin:
            yield with_column("recipe", at, int(dice.choice(kin)))


def a_number_off(dice: np.random.Generator) -> Iterator[Program]:
    """A pass uses other weights, an element is another, a step is for an array that is not there, or begins early."""
    table = ROWS.table
    while True:
        at = int(dice.integers(len(ROWS)))
        for name, there, by in (("preload", 0, 2), ("array", 0, 1), ("delay", 1, -2), ("origin", 0, 1)):
            if table[name][at] >= there:
                yield with_column(name, at, int(table[name][at]) + by)
        if table["array"][at] >= 0:
            yield with_column("delay", at, -1)


def found(program: Program) -> bool:
    """Whether anybody sees that something is wrong."""
    try:
        if any(hazards(program, MACHINE)):
            return True
        # What brings more than is asked for leaves the values alone, but not the totals, which goldens hold.
        more = program.use != PROGRAM.use or not event.run(program, MACHINE)
        return check_layer(LAYER, BATCH, program, MACHINE, seed=3).mismatched > 0 or more
    except (CheckFailed, DeadlockError, IndexError):
        return True


def test_the_sound_program_passes() -> None:
    assert not found(PROGRAM)


@pytest.mark.parametrize(
    ("mutants", "count"),
    [(a_wait_less, MUTANTS), (a_slot_moved, MUTANTS), (a_recipe_exchanged, MUTANTS), (a_number_off, 2 * MUTANTS)],
)
def test_one_wrong_number_is_found(mutants: Callable[[np.random.Generator], Iterator[Program]], count: int) -> None:
    wrong = [*islice(mutants(np.random.default_rng(5)), count)]
    missed = [at for at, program in enumerate(wrong) if not found(program)]
    assert len(wrong) == count
    assert not missed
