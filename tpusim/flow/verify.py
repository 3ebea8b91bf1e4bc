"""Compute a layer through its Program and hold every output against the reference."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np

from tpusim import reference
from tpusim.base.errors import CheckFailed, failures_named
from tpusim.flow.held import Expectation, Held, Told, unheard
from tpusim.flow.numbers import SMALL, Numbers
from tpusim.flow.whole import Kept, verdict_of_whole
from tpusim.machines.tpu import datapath
from tpusim.machines.tpu.description import Hardware
from tpusim.machines.tpu.program.check import check_program
from tpusim.machines.tpu.program.program import Program
from tpusim.network.ops.op import OFMAP, Op
from tpusim.numerics.equality import Verdict
from tpusim.reference import Operand, Operands, Tensor

Take = Callable[[Tensor], None]
"""Given the outputs of a layer."""


def check_layer(
    layer: Op,
    batch: int,
    program: Program,
    hardware: Hardware,
    seed: int,
    told: Told = unheard,
    numbers: Numbers = SMALL,
) -> Verdict:
    """Compare every element that is written with the reference; `told` how many outputs have been, now and then.

    Raises:
        InputError: when a sum of the layer is too long to be checked; names the layer.
        CheckFailed: when the Program addresses words or lanes that do not exist; names the layer.
    """
    operands = numbers.operands(layer, batch, seed)
    return check_values(layer, numbers.program(layer, batch, program), hardware, operands, told, numbers)


def check_values(
    layer: Op,
    program: Program,
    hardware: Hardware,
    operands: Operands,
    told: Told = unheard,
    numbers: Numbers = SMALL,
    take: Take | None = None,
) -> Verdict:
    """The same with operands that are given; `take` gets the ofmap [out_channel, row, col, image], if it is wanted."""
    told_of = {OFMAP: told}
    # What overflows is infinite here and there: whoever reads or expects it says so, in words of ours.
    with np.errstate(over="ignore", invalid="ignore"), failures_named(layer):
        check_program(program, hardware)
        held = {
            name: Held(layer, program, name, Expectation(layer, name, operands, numbers), told_of.get(name, unheard))
            for name in _written(program) - ({OFMAP} if take else set())
        }
        takers: dict[str, datapath.Taker] = {**held}
        if take:
            takers[OFMAP] = kept = Kept(program, OFMAP, told)
        datapath.run(program, hardware, operands, takers, in_array_order=numbers.in_array_order)
    with np.errstate(over="ignore", invalid="ignore"):
        verdicts = {name: each.verdict() for name, each in held.items()}
        if take:
            take(kept.values)
            verdicts[OFMAP] = verdict_of_whole(Expectation(layer, OFMAP, operands, numbers), kept.values)
    return _together(verdicts)


def _written(program: Program) -> set[str]:
    """The tensors that are to be compared."""
    names = {OFMAP, *program.checked}
    if unknown := names - {*reference.TENSORS}:
        raise CheckFailed(f"the Program writes {', '.join(sorted(unknown))}, of which the reference knows nothing")
    return names


def operands_of(layer: Op, batch: int, seed: int) -> dict[str, Operand]:
    """The operands of a layer, small whole numbers, by the names of the tensors in its Program."""
    return SMALL.operands(layer, batch, seed)


def as_floats(operands: Operands) -> dict[str, Tensor]:
    """The same numbers as the register engine moves them."""
    return {name: each.astype(np.float32) for name, each in operands.items()}


def verdict_of(layer: Op, operands: Operands, written: Mapping[str, Tensor], numbers: Numbers = SMALL) -> Verdict:
    """Hold what a Program has written against the reference, of what that knows."""
    known = {name: each for name, each in written.items() if name in reference.TENSORS}
    held = {name: (Expectation(layer, name, operands, numbers), each) for name, each in known.items()}
    return _together({name: verdict_of_whole(*each) for name, each in held.items()})


def _together(verdicts: Mapping[str, Verdict]) -> Verdict:
    """That on the outputs, with those on what they were made of."""
    verdict = verdicts[OFMAP]
    for name in sorted({*verdicts} - {OFMAP}):
        verdict = verdict.after(verdicts[name])
    return verdict


def expected(layer: Op, operands: Operands) -> Tensor:
    """The ofmap [out_channel, row, col, image] that the reference computes."""
    return reference.compute(layer, operands)
