"""Journeys of values through a network's layers, which the reference computes, or an engine."""

from __future__ import annotations

import os

from tpusim import load_hardware, simulate
from tpusim.flow.values import Journey
from tpusim.flow.verify import expected
from tpusim.network.workload import Workload
from tpusim.reference import batch_of

SMALL_MACHINE = "tiny_4x4"
REFERENCE = "reference"
ENGINE = os.environ.get("TPUSIM_ENGINE", REFERENCE)
"""What computes layers where a test names no engine. A machine takes several times as long, and random layers of every
op are held against the reference in tests/agreement; `scripts/prove long` sends all of these through both engines.
"""


def go(
    journey: Journey, work: Workload, engine: str = ENGINE, dtype: str = "f32", hardware: str = SMALL_MACHINE
) -> None:
    """Send values through all layers, on a machine with every layer checked."""
    if engine == REFERENCE:
        by_reference(journey, work)
    else:
        machine = load_hardware(hardware, ["mapping.search=estimate"])
        assert simulate(work, machine, dtype=dtype, engine=engine, journey=journey).correct


def by_reference(journey: Journey, work: Workload) -> None:
    """Send values through all layers on all chips, as the reference computes them."""
    for layer in work.layers:
        numbers = journey.numbers_of(layer)
        for _ in range(journey.chips):
            operands = journey.operands(layer)
            number = numbers.number(layer, batch_of(layer, operands))
            given = {name: each.astype(number) for name, each in operands.items()}
            journey.take(expected(layer, given).astype(number))
