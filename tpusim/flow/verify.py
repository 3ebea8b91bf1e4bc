"""Compute a layer through its Program and hold every output against the reference."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np

from tpusim import reference
from tpusim.base.errors import CheckFailed, failures_named
from tpusim.flow.held import Expectation, Held, Told, unheard
from tpusim.flow.numbers import SMALL, Numbers
from tpusim.flow.whole import Kept, verdict_of_whole
from tpusim.machines.lowered import InParts, Lowered, Taker
from tpusim.network.ops.op import OFMAP, Op
from tpusim.numerics.equality import Verdict
from tpusim.reference import Operand, Operands, Tensor

Take = Callable[[Tensor], None]
"""Given the outputs of a layer."""
Doing = Callable[[int, str], None]
"""Told of how many outputs something is done, and what."""


def undone(_: int, what: str) -> None:
    """Nobody listens."""


def check_values(
    layer: Op,
    ready: Lowered,
    operands: Operands,
    numbers: Numbers = SMALL,
    told: Doing = undone,
    take: Take | None = None,
) -> Verdict:
    """Compare every element that is written with the reference.

    Args:
        ready: the layer, for its machine.
        told: how many outputs have been, now and then, and what has been done to them.
        take: gets the ofmap [out_channel, row, col, image], if it is wanted.

    Raises:
        CheckFailed: when the machine is asked for what it does not have; names the layer.
    """
    number = numbers.number(layer, int(operands["ifmap"].shape[-1]))
    # What overflows is infinite here and there: whoever reads or expects it says so, in words of ours.
    with np.errstate(over="ignore", invalid="ignore"), failures_named(layer):
        if (program := ready.in_parts(number)) is not None:
            return _by_parts(layer, program, operands, numbers, lambda count: told(count, "checked"), take)
        written = ready.values(operands, number, lambda count: told(count, "computed"))
    if take:
        take(written[OFMAP])
    return verdict_of(layer, operands, written, numbers)


def _by_parts(
    layer: Op, program: InParts, operands: Operands, numbers: Numbers, told: Told, take: Take | None
) -> Verdict:
    """Each part as it is written; but for the ofmap that is to be taken, in the end."""
    told_of = {OFMAP: told}

    def expectation(name: str) -> Expectation:
        return Expectation(layer, name, operands, numbers)

    held = {
        name: Held(layer, program.written(name), expectation(name), told_of.get(name, unheard))
        for name in _written(program) - ({OFMAP} if take else set())
    }
    takers: dict[str, Taker] = {**held}
    if take:
        takers[OFMAP] = kept = Kept(program, OFMAP, told)
    program.run(operands, takers, numbers.in_array_order)
    verdicts = {name: each.verdict() for name, each in held.items()}
    if take:
        take(kept.values)
        verdicts[OFMAP] = verdict_of_whole(expectation(OFMAP), kept.values)
    return _together(verdicts)


def _written(program: InParts) -> set[str]:
    """The tensors that are to be compared."""
    names = {OFMAP, *program.checked}
    if unknown := names - {*reference.TENSORS}:
        raise CheckFailed(f"the Program writes {', '.join(sorted(unknown))}, of which the reference knows nothing")
    return names


def operands_of(layer: Op, batch: int, seed: int) -> dict[str, Operand]:
    """The operands of a layer, small whole numbers, by the names of the tensors in its Program."""
    return SMALL.operands(layer, batch, seed)


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
