"""Compute a layer through its Program and hold every output against the reference."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import partial

import numpy as np

from tpusim import reference
from tpusim.base.errors import CheckFailed, DeadlockError, PortConflict
from tpusim.flow.held import Held, Told, unheard
from tpusim.machines.tpu import datapath
from tpusim.machines.tpu.description import Hardware
from tpusim.machines.tpu.program.check import check_program
from tpusim.machines.tpu.program.program import Program
from tpusim.network.ops import Op
from tpusim.network.ops.op import OFMAP
from tpusim.numerics.equality import Verdict, compare
from tpusim.reference import Operand, Operands, Tensor


@contextmanager
def failures_named(layer: Op) -> Iterator[None]:
    """A failure of the machine in here says which layer it is about."""
    try:
        yield
    except (CheckFailed, DeadlockError, PortConflict) as error:
        raise type(error)(f"layer {layer.name}: {error}") from None


def check_layer(
    layer: Op, batch: int, program: Program, hardware: Hardware, seed: int, told: Told = unheard
) -> Verdict:
    """Compare every element that is written, for equality; `told` how many outputs have been, now and then.

    Raises:
        CheckFailed: when the Program addresses words or lanes that do not exist; names the layer.
    """
    operands = operands_of(layer, batch, seed)
    with failures_named(layer):
        check_program(program, hardware)
        told_of = {OFMAP: told}
        held = {name: Held(layer, program, name, operands, told_of.get(name, unheard)) for name in _written(program)}
        datapath.run(program, hardware, operands, held)
    return _together({name: each.verdict() for name, each in held.items()})


def _written(program: Program) -> set[str]:
    """The tensors that are to be compared."""
    names = {OFMAP, *program.written}
    if unknown := names - {*reference.TENSORS}:
        raise CheckFailed(f"the Program writes {', '.join(sorted(unknown))}, of which the reference knows nothing")
    return names


def operands_of(layer: Op, batch: int, seed: int) -> dict[str, Operand]:
    """The operands of a layer, by the names of the tensors in its Program."""
    return reference.operands(layer, batch, seed)


def as_floats(operands: Operands) -> dict[str, Tensor]:
    """The same numbers as the register engine moves them."""
    return {name: each.astype(np.float32) for name, each in operands.items()}


def verdict_of(layer: Op, operands: Operands, written: Mapping[str, Tensor]) -> Verdict:
    """Hold what a Program has written against the reference."""
    return _together({name: _verdict_of(name, layer, operands, each) for name, each in written.items()})


def _verdict_of(name: str, layer: Op, operands: Operands, written: Tensor) -> Verdict:
    oracle, (channels, rows, cols, images) = reference.TENSORS[name], map(range, written.shape)
    expected = oracle.compute(layer, operands, (channels, rows, cols, images))
    return compare(written, expected, partial(oracle.element_name, layer), name)


def _together(verdicts: Mapping[str, Verdict]) -> Verdict:
    """That on the outputs, with those on what they were made of."""
    verdict = verdicts[OFMAP]
    for name in sorted({*verdicts} - {OFMAP}):
        verdict = verdict.after(verdicts[name])
    return verdict


def expected(layer: Op, operands: Operands) -> Tensor:
    """The ofmap [out_channel, row, col, image] that the reference computes."""
    return reference.compute(layer, operands)
