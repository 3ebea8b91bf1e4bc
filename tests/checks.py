"""A Program written by hand or by a lowering, run and held against the reference."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from tpusim.flow.numbers import SMALL, Numbers
from tpusim.flow.verify import check_values
from tpusim.machines.tpu.description import Hardware
from tpusim.machines.tpu.program.program import Program
from tpusim.machines.tpu.runs.prepared import PreparedLayer
from tpusim.network.ops.op import Op
from tpusim.numerics.equality import Verdict
from tpusim.reference import Operands

TWO_ARRAYS = str(Path(__file__).parent / "machines" / "two_arrays.yaml")
"""A core of two arrays that share weights: what its Programs show, no shipped machine does."""

ESTIMATE = {"mapping.search": "estimate"}
"""Changes of a machine: blocks that simulation chooses take most of the time, and are not what most tests are about."""


def unheard(_: int) -> None:
    """Nobody listens."""


def program_for(numbers: Numbers, layer: Op, batch: int, program: Program) -> Program:
    """The Program, for numbers that hold these values."""
    return replace(program, doubles=True) if numbers.needs_doubles(layer, batch) else program


def check_layer(
    layer: Op,
    batch: int,
    program: Program,
    hardware: Hardware,
    seed: int,
    told: Callable[[int], None] = unheard,
    numbers: Numbers = SMALL,
) -> Verdict:
    """Compare every element that a Program writes with the reference, on random operands."""
    return check_program_values(layer, program, hardware, numbers.operands(layer, batch, seed), told, numbers)


def check_program_values(
    layer: Op,
    program: Program,
    hardware: Hardware,
    operands: Operands,
    told: Callable[[int], None] = unheard,
    numbers: Numbers = SMALL,
    take: Callable[[Any], None] | None = None,
) -> Verdict:
    """Compare on operands that are given; `take` gets the ofmap, if it is wanted."""
    ready = PreparedLayer(program, None, hardware, "")  # type: ignore[arg-type]
    return check_values(layer, ready, operands, numbers, lambda count, _: told(count), take)
