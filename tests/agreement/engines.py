"""The two engines of the event room as one: whoever asks for the time of a Program has them compared."""

from __future__ import annotations

import re

import numpy as np
import pytest

from tpusim.base.errors import DeadlockError
from tpusim.machines.tpu import event
from tpusim.machines.tpu.description import Hardware
from tpusim.machines.tpu.event import engine, processes
from tpusim.machines.tpu.event.log import Log
from tpusim.machines.tpu.observation.timeline import Timing
from tpusim.machines.tpu.program.program import Program


def agreed_timing(program: Program, hardware: Hardware) -> Timing:
    """Time by the event engine; SimPy's must agree on every time of every step, every cycle of the ports, and every
    account. Raises DeadlockError, in the same words as SimPy's.
    """
    try:
        loop = engine.timed(program, hardware, keep=True)
    except DeadlockError as error:
        with pytest.raises(DeadlockError, match=re.escape(str(error))):
            processes.timed(program, hardware)
        raise
    assert_alike(loop, processes.timed(program, hardware))
    timing = event.run(program, hardware)
    assert timing == event.by_simpy(program, hardware)
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
