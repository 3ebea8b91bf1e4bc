"""Turns of long loops that are copied from the last: the same rows as if each had been scheduled."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.covering import covering
from tests.strategies import cases, machines_of_all_kinds
from tpusim import Conv2d
from tpusim.base.errors import CapacityError
from tpusim.machines.tpu.description import Hardware, load_hardware
from tpusim.machines.tpu.lowering import convolution
from tpusim.machines.tpu.lowering.registry import drafts_of
from tpusim.machines.tpu.program.rows import Rows
from tpusim.machines.tpu.schedule import scheduler
from tpusim.machines.tpu.schedule.scheduler import Schedule, link
from tpusim.machines.tpu.schedule.turns import Loop, kept, with_turns
from tpusim.machines.tpu.schedule.units import Units
from tpusim.network.ops.array_op import ArrayOp, Gemm


def differ(one: Rows, other: Rows) -> list[str]:
    """What differs between the rows."""
    of = {name: (one.table[name], other.table[name]) for name in one.table.dtype.names or ()}
    of |= {name: (getattr(one, name), getattr(other, name)) for name in ("slots", "origins", "waits")}
    found = [name for name, (mine, its) in of.items() if not np.array_equal(mine, its)]
    return found + (["recipes"] if [*one.recipes] != [*other.recipes] else [])


def copied(units: Units) -> Rows | None:
    """The rows with copies, once they have been compared; None where turns are not alike."""
    bases = link(units)
    rows = scheduler._by_turns(units, bases)
    if rows is not None:
        assert not differ(Schedule(units, bases).run(), rows)
    return rows


def layers() -> st.SearchStrategy[ArrayOp]:
    """Products and convolutions of many output channels."""
    wide = st.integers(11, 90)
    products = st.builds(Gemm, st.just("g"), st.integers(1, 30), wide, st.integers(1, 40))
    convs = st.builds(
        lambda size, channels, out, kernel: Conv2d("c", channels, size, size, out, (kernel,) * 2),
        st.integers(3, 6), st.integers(1, 9), wide, st.integers(1, 3),
    )  # fmt: skip
    return st.one_of(products, convs)


@settings(max_examples=cases(0.5), deadline=None)
@given(layers(), machines_of_all_kinds(4), st.integers(1, 3), st.sampled_from(["estimate", "simulate"]))
def test_copied_turns_are_those_that_would_be_scheduled(
    layer: ArrayOp, hardware: Hardware, batch: int, search: str
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(convolution, "LONG", 0)
        try:
            drafts = drafts_of(layer, batch, hardware.having("mapping", search=search), "channel_first")
        except CapacityError:
            return
        for draft in drafts[:6]:
            copied(draft.units)


@pytest.mark.parametrize(
    ("machine", "layer"),
    covering(
        1,
        ["tiny_4x4", "tpu_v2", "tpu_v2_core", "tpu_v4_core", "tpu_v6e"],
        [Gemm("g", 64, 100, 40), Conv2d("c", 16, 6, 6, 120, (3, 3))],
    ),
)
def test_turns_are_copied(layer: ArrayOp, machine: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where blocks keep few column folds and drain, or overlap; on arrays of their own; in steps of a pipeline."""
    monkeypatch.setattr(convolution, "LONG", 0)
    changes = {"array.size": 4, "vector_memory.capacity": "1 KiB", "mapping.block.in_channels": 8}
    hardware = load_hardware(machine, {"mapping.search": "simulate", **changes})
    drafts = drafts_of(layer, 2, hardware, "channel_first")
    assert any(copied(draft.units) is not None for draft in drafts)


def test_no_turn_is_copied_that_differs_in_a_number(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of each field of a row, of slots, of elements and of waits, in each of the three pairs that are compared."""
    monkeypatch.setattr(convolution, "LONG", 0)
    compared = list[tuple[Rows, list[Loop], int]]()

    def noted(rows: Rows, loops: list[Loop], pairs: int) -> Rows | None:
        compared.append((rows, loops, pairs))
        return with_turns(rows, loops, pairs)

    monkeypatch.setattr(scheduler, "with_turns", noted)
    hardware = load_hardware("tpu_v2", {"array.size": 4, "vector_memory.capacity": "1 KiB", "hbm.latency": "20 ns"})
    layer = Gemm("g", 64, 100, 40)
    assert copied(drafts_of(layer, 2, hardware, "channel_first")[0].units) is not None
    rows, loops, pairs = compared[0]
    loop = loops[-1]
    for ahead, behind in pairwise(loop):
        for field in rows.table.dtype.names or ():
            table = rows.table.copy()
            passes = np.flatnonzero(table["preload"][ahead.rows : behind.rows] >= 0)
            at = ahead.rows + passes[len(passes) // 2] if field == "preload" else (ahead.rows + behind.rows) // 2
            table[field][at] += 1
            # A row that begins its waits later leaves one to the row ahead of it.
            wrong = Rows(table, rows.recipes, rows.slots, rows.waits, rows.origins)
            assert with_turns(wrong, loops, pairs) is None, field
        for field in ("slots", "origins", "waits"):
            numbers = np.array(getattr(rows, field))
            numbers[(getattr(ahead, field) + getattr(behind, field)) // 2] += 1
            of = {name: getattr(rows, name) for name in ("slots", "waits", "origins")} | {field: numbers}
            assert with_turns(Rows(rows.table, rows.recipes, **of), loops, pairs) is None, field
    assert kept(0)[1] < 1
