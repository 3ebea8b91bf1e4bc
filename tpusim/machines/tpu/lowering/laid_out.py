"""A Program whose tensors lie in HBM as `hbm.layout` says, whichever lowering wrote it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from math import prod

from tpusim.base.errors import CapacityError
from tpusim.machines.tpu.description import Hardware
from tpusim.machines.tpu.program.moves import Moves
from tpusim.machines.tpu.program.program import Explanation, Lowered, Program
from tpusim.machines.tpu.program.steps import Step
from tpusim.machines.tpu.program.transfers import Transfer
from tpusim.memory.orders import AS_READ, HWCN, Layouts


def laid_out(lowered: Lowered, hardware: Hardware) -> Lowered:
    """The Program `in_layout`, and people are told of it. Raises CapacityError where the DRAM has too little room."""
    _check_room(lowered[0], hardware)
    program, told = in_layout(lowered[0], hardware), lowered[1]
    if hardware.hbm.layout == Layouts():
        others = ", the filter as it is read" if any(each.name == "filter" for each in program.tensors) else ""
        return program, _told(told, f"feature maps lie {HWCN} in HBM{others}")
    return program, _told(told, f"in HBM {'; '.join(_words(program, Moves(program, hardware)))}")


def in_layout(program: Program, hardware: Hardware) -> Program:
    """The same steps, each transfer with the bytes that its runs take.

    Lowerings count those of words as they are streamed: where nothing else is asked for, it is what they wrote.
    """
    if hardware.hbm.layout == Layouts():
        return program
    moves = Moves(program, hardware)
    return replace(program, steps=tuple(_moved(step, moves) for step in program.steps))


def _check_room(program: Program, hardware: Hardware) -> None:
    """That all tensors of the layer have room in the DRAM together: addresses beyond it would begin again at 0."""
    device = hardware.hbm.dram
    if device is None or _at_most(program, hardware) <= device.capacity_bytes:
        return
    if (size := Moves(program, hardware).size) > device.capacity_bytes:
        raise CapacityError(
            f"its tensors take {size:,} B in HBM, and {device.name} has {device.capacity_bytes:,} B; "
            "give hbm.device more rows or channels, or choose a smaller batch"
        )


def _at_most(program: Program, hardware: Hardware) -> int:
    """No less than what tensors take, quickly: their elements, and what is moved of what lies as it is read."""
    elements = sum(prod(each.padded or each.shape) for each in program.tensors)
    moved = sum(step.hbm_bytes for step in program.steps if isinstance(step, Transfer))
    wide = max([hardware.vector_memory.element_bytes, *(each.number_bytes or 0 for each in program.tensors)])
    return elements * wide + moved + len(program.tensors) * hardware.hbm.alignment_bytes


def _told(told: Explanation, words: str) -> Explanation:
    return replace(told, aspects={**told.aspects, "layout": words})


def _moved(step: Step, moves: Moves) -> Step:
    return replace(step, hbm_bytes=moves.bytes(step)) if isinstance(step, Transfer) else step


def _words(program: Program, moves: Moves) -> Iterator[str]:
    """Which way each feature map and the filter lie, and how many bytes are moved for each that is wanted."""
    for tensor in (each for each in program.tensors if each.number_bytes is None):
        steps = [step for step in program.steps if isinstance(step, Transfer) and step.tensor.name == tensor.name]
        moved, wanted = sum(step.hbm_bytes for step in steps), sum(map(moves.wanted, steps))
        order = "as it is read" if moves.order(tensor.name) == AS_READ else moves.order(tensor.name)
        yield f"{tensor.name} lies {order}, {moved / max(wanted, 1):.3g} bytes moved for each that is wanted"
