"""What every way to run a Program must agree on: `agree` for that of a layer, `clocked` for one with its own operands,
`agreed_timing` for the time alone.
"""

from __future__ import annotations

import re

import numpy as np
import pytest

from tests.checks import check_layer
from tpusim.base.errors import DeadlockError
from tpusim.flow.numbers import SMALL, Numbers
from tpusim.flow.verify import Expectation, verdict_of
from tpusim.machines.tpu import datapath, event, register
from tpusim.machines.tpu.description import Hardware
from tpusim.machines.tpu.event import engine, processes
from tpusim.machines.tpu.event.accounts import timing_of
from tpusim.machines.tpu.event.log import Log
from tpusim.machines.tpu.observation.timeline import Timing
from tpusim.machines.tpu.program.check import check_program
from tpusim.machines.tpu.program.program import Program
from tpusim.machines.tpu.runs.prepared import as_floats
from tpusim.network.ops.op import Op
from tpusim.reference import Operands, Tensor


def agree(
    layer: Op,
    batch: int,
    program: Program,
    hardware: Hardware,
    *,
    seed: int = 2,
    numbers: Numbers = SMALL,
    timing: Timing | None = None,
) -> Timing:
    """Hold all that runs a layer's Program against one another, and return its time.

    * Time and accounts: loop, SimPy and registers agree, as `clocked` says; `timing`, if it is known already, is
      that of the first two.
    * Values: each element that registers write is the reference's, or within its bound; so is what the data path
      writes, as a run compares it, spill by spill; and where there is a bound, both write the same, bit for bit.
    """
    operands = numbers.operands(layer, batch, seed)
    timing, written = clocked(program, hardware, operands, timing)
    # Sums over what passes add elements in an order of their own.
    if Expectation(layer, "ofmap", operands, numbers).bounded and not getattr(layer, "tallies", ()):
        np.testing.assert_array_equal(datapath.run(program, hardware, operands)["ofmap"], written["ofmap"])
    whole = verdict_of(layer, operands, written, numbers)
    parts = check_layer(layer, batch, program, hardware, seed, numbers=numbers)
    for verdict in (whole, parts):
        assert (verdict.checked, verdict.first) == (layer.outputs(batch), None)
    return timing


def clocked(
    program: Program, hardware: Hardware, operands: Operands, timing: Timing | None = None
) -> tuple[Timing, dict[str, Tensor]]:
    """Return a Program's time, and what registers write of these operands.

    The Program is sound; loop, SimPy and registers agree on cycles, accounts and accesses of ports, and these accesses
    are those that the steps say. `timing` is that of the first two, if it is known already.
    """
    check_program(program, hardware)
    told = agreed_timing(program, hardware) if timing is None else timing
    found, written = register.run(program, hardware, as_floats(operands))
    assert found == told
    assert min(cycles for account in found.units.values() for cycles in account.values()) >= 0
    assert (found.reads, found.writes) == (program.use.port_reads, program.use.port_writes)
    return found, written


def agreed_timing(program: Program, hardware: Hardware, timing: Timing | None = None) -> Timing:
    """Time by the event engine; SimPy's must agree on every time of every step, every cycle of the ports, and every
    account. `timing` is what `event.run` says, if it was asked. Raises DeadlockError, in the same words as SimPy's.
    """
    try:
        loop = engine.timed(program, hardware, keep=True)
    except DeadlockError as error:
        with pytest.raises(DeadlockError, match=re.escape(str(error))):
            processes.timed(program, hardware)
        raise
    simpy = processes.timed(program, hardware)
    assert_alike(loop, simpy)
    timing = timing or event.run(program, hardware)
    # As `event.by_simpy` draws it from a log.
    assert timing == timing_of(simpy, program, hardware)
    return timing


def assert_alike(loop: Log, simpy: Log) -> None:
    """Two logs of a Program with all that is kept: the same of every step and every cycle."""
    assert (loop.cycles, loop.buses, loop.hbm) == (simpy.cycles, simpy.buses, simpy.hbm)
    assert loop.owned == simpy.owned
    for name in ("loads", "passes", "works", "moves", "reads"):
        ours, theirs = getattr(loop, name), getattr(simpy, name)
        assert ours.dtype == theirs.dtype
        np.testing.assert_array_equal(ours, theirs, name)
    assert loop.owners.keys() == simpy.owners.keys()
    for port, owners in loop.owners.items():
        np.testing.assert_array_equal(np.trim_zeros(owners, "b"), np.trim_zeros(simpy.owners[port], "b"), port)
