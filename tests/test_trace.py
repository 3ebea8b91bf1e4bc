"""Fig. 10 and 11 of the paper, cycle by cycle, on the 4 x 4 machine with words of 2."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise

import numpy as np

from tests.machines import machine
from tpusim import reference
from tpusim.engine.register import Machine, trace
from tpusim.lowering.channel_first import lower
from tpusim.report.trace_text import LEGEND, lines
from tpusim.workload import Conv2d

Golden = Callable[[str, str], None]
FIG_10 = Conv2d("fig10", 4, 3, 3, 4, (1, 1), (1, 1), (0, 0), (1, 1), 1)
"""Tile (1,1) of the 3 x 3 filter: N = 2, C_I = C_O = 4, 3 x 3 outputs, as a 1 x 1 layer of its own."""
FIG_11 = Conv2d("fig11", 2, 3, 4, 4, (1, 2), (1, 1), (0, 0), (1, 1), 1)
"""Tiles (1,1) and (1,2) stacked: C_I = 2, 3 x 3 outputs."""


def traced(layer: Conv2d) -> tuple[list[str], Machine]:
    hardware = machine(4, 4, word_elements=2, alus=8, bytes_per_cycle=5000, latency_cycles=1)
    program = lower(layer, 2, hardware)[1]
    ifmap, filter_ = reference.operands(layer, 2, seed=0)
    running = Machine(program, hardware, ifmap, filter_)
    text = list(lines(trace(running)))
    np.testing.assert_array_equal(running.ofmap, reference.compute(layer, ifmap, filter_))
    return text, running


def ports(text: list[str]) -> list[str]:
    return [line.split()[1] for line in text[len(LEGEND) + 1 :]]


def test_fig_10_reads_and_writes_swap_every_cycle(golden: Golden) -> None:
    """In the steady state lanes 1 and 3 read while lanes 2 and 4 write, and swap the cycle after."""
    text, _ = traced(FIG_10)
    golden("fig10.txt", "\n".join(text) + "\n")
    steady = [lanes for lanes in ports(text) if lanes in ("RWRW", "WRWR")]
    assert len(steady) >= 8
    assert all(one != other for one, other in pairwise(steady))


def test_fig_11_two_taps_fill_the_array(golden: Golden) -> None:
    """One pass instead of two; every PE works in the steady state."""
    text, running = traced(FIG_11)
    golden("fig11.txt", "\n".join(text) + "\n")
    assert len({stream.rows for stream in running.program.streams}) == 1
    assert running.program.streams[0].rows == 4
    assert running.program.multi_tile == 2
