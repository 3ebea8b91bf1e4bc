"""A Program whose tensors lie in HBM as `hbm.layout` says, whichever lowering wrote it."""

from __future__ import annotations

from dataclasses import replace

from tpusim.machines.tpu.description import Hardware
from tpusim.machines.tpu.program.explanation import Lowered
from tpusim.machines.tpu.program.moves import Moves
from tpusim.machines.tpu.program.program import Program
from tpusim.machines.tpu.program.steps import Step, Transfer
from tpusim.memory.orders import Layouts


def laid_out(lowered: Lowered, hardware: Hardware) -> Lowered:
    """The same steps, each transfer with the bytes that its runs take; and people are told of it.

    Lowerings count those of words as they are streamed: where nothing else is asked for, it is what they wrote.
    """
    program, told = lowered
    if hardware.hbm.layout == Layouts():
        return lowered
    moves = Moves(program, hardware)
    program = replace(program, steps=tuple(_moved(step, moves) for step in program.steps))
    return program, replace(told, aspects={**told.aspects, "layout": _words(program, moves)})


def _moved(step: Step, moves: Moves) -> Step:
    return replace(step, hbm_bytes=moves.bytes(step)) if isinstance(step, Transfer) else step


def _words(program: Program, moves: Moves) -> str:
    """Which way each tensor lies, and what it moves more than it wants."""
    return "; ".join(_of(name, program, moves) for name in dict.fromkeys(each.name for each in program.tensors))


def _of(name: str, program: Program, moves: Moves) -> str:
    steps = [step for step in program.steps if isinstance(step, Transfer) and step.tensor.name == name]
    moved, wanted = sum(step.hbm_bytes for step in steps), sum(map(moves.wanted, steps))
    more = f", {moved / wanted:.3g} times the bytes that are wanted" if wanted else ""
    return f"{name} lies {moves.order(name)}{more}"
