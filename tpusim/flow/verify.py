"""Compute a layer through its Program and hold every output against the reference."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import numpy as np

from tpusim import reference
from tpusim.base.errors import CheckFailed, DeadlockError, PortConflict
from tpusim.flow.held import Held, Told
from tpusim.machines.tpu import datapath
from tpusim.machines.tpu.description import Hardware
from tpusim.machines.tpu.program.check import check_program
from tpusim.machines.tpu.program.program import Program
from tpusim.network.ops import Op
from tpusim.numerics.equality import Verdict, compare
from tpusim.reference import Operand, Tensor


@contextmanager
def failures_named(layer: Op) -> Iterator[None]:
    """A failure of the machine in here says which layer it is about."""
    try:
        yield
    except (CheckFailed, DeadlockError, PortConflict) as error:
        raise type(error)(f"layer {layer.name}: {error}") from None


def check_layer(
    layer: Op, batch: int, program: Program, hardware: Hardware, seed: int, told: Told = lambda written: None
) -> Verdict:
    """Compare all outputs, for equality; `told` how many have been, now and then.

    Raises:
        CheckFailed: when the Program addresses words or lanes that do not exist; names the layer.
    """
    operands = operands_of(layer, batch, seed)
    with failures_named(layer):
        check_program(program, hardware)
        held = Held(layer, program, operands["ifmap"], operands["filter"], told)
        datapath.run(program, hardware, operands, {"ofmap": held})
    return held.verdict()


def operands_of(layer: Op, batch: int, seed: int) -> dict[str, Operand]:
    """The operands of a layer, by the names of the tensors in its Program."""
    ifmap, filter_ = reference.operands(layer, batch, seed)
    return {"ifmap": ifmap, "filter": filter_}


def as_floats(operands: Mapping[str, Operand]) -> dict[str, Tensor]:
    """The same numbers as the register engine moves them."""
    return {name: each.astype(np.float32) for name, each in operands.items()}


def verdict_of(layer: Op, operands: Mapping[str, Operand], written: Mapping[str, Tensor]) -> Verdict:
    """Hold the ofmap that a Program has written against the reference."""
    return compare(written["ofmap"], expected(layer, operands), layer.element_name)


def expected(layer: Op, operands: Mapping[str, Operand]) -> Tensor:
    """The ofmap [out_channel, row, col, image] that the reference computes."""
    return reference.compute(layer, operands["ifmap"], operands["filter"])
