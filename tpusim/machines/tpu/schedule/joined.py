"""Several layers as one Program, so that what one begins with goes on while the one ahead ends.

Steps keep the order of their layers, each unit takes its own in that order, and what a layer waits for of those before
is written down as any wait is: words of the vector memories that are still in use, and spills of what it reads. So the
interpreters run it as they run any other.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

from tpusim.machines.tpu.definition import frame_of
from tpusim.machines.tpu.description import Hardware
from tpusim.machines.tpu.program.program import Handed, Program
from tpusim.machines.tpu.program.steps import Shift
from tpusim.machines.tpu.program.tensor import Tensor
from tpusim.machines.tpu.program.waits import Waits
from tpusim.machines.tpu.schedule.scheduler import program_of
from tpusim.machines.tpu.schedule.units import Units
from tpusim.network.ops.op import OFMAP


class Read(NamedTuple):
    """What a layer reads: the outcomes of the layers of these names; `direct`: of one, and as that made it; `placed`:
    made of what stands at the same place in all of them.
    """

    names: tuple[str, ...]
    direct: bool = True
    placed: bool = False


def _as_it_is(program: Program) -> Program:
    return program


class Joint(NamedTuple):
    """A layer of a chain: its name, unlike any other's, its Program, and by its own tensors what it reads of others.

    Attributes:
        leaves: whether somebody outside the chain wants its outcome.
        units: what the Program was scheduled from; without them a layer keeps its words, and nothing stays for it.
        finish: makes of what is scheduled the Program to be run.
    """

    name: str
    program: Program
    reads: Mapping[str, Read]
    leaves: bool = True
    units: Units | None = None
    finish: Callable[[Program], Program] = _as_it_is

    def at(self, first: int) -> Program:
        """The Program in words from `first` on."""
        if not first:
            return self.program
        assert self.units is not None
        return self.finish(program_of(self.units, first))


def unfit(layer: Joint, before: Sequence[Joint], hardware: Hardware) -> str:
    """Why a layer cannot be joined to those ahead of it; nothing where it can."""
    program, ahead = layer.program, [each.program for each in before]
    made_before = {each.operand for each in program.derived}
    if any(name in made_before or name not in {each.name for each in program.tensors} for name in layer.reads):
        return "what it reads is transformed before it begins"
    if program.banked or any(each.banked for each in ahead):
        return "the ifmap lies in banks"
    if program.tables or any(each.tables for each in ahead):
        return "passes read through pointers"
    if hardware.array.queues > 1:
        return "arrays have weights of their own"
    if any(each.word_fill != program.word_fill for each in ahead):
        return "words hold another number of elements"
    streaming = [each for each in (program, *ahead) if each.streams]
    if len({each.word_cycles for each in streaming}) > 1:
        return "words take another time to be made ready"
    if len({each.frame(hardware).period for each in streaming} | {*_period(streaming, hardware)}) > 1:
        return "the frame of the port is of another length"
    return ""


def _period(streaming: Sequence[Program], hardware: Hardware) -> Iterator[int]:
    """How long the frame is that has slots for passes of all of them."""
    if streaming:
        first, clients = streaming[0], max((each.clients for each in streaming), key=len)
        finishing = max(each.finishing for each in streaming)
        words = first.word_fill, clients, 1, first.word_cycles, finishing
        yield frame_of(hardware, *words).period


def joined(layers: Sequence[Joint], hardware: Hardware) -> Program:
    """One Program of layers that follow one another, each of which fits all before (`unfit`).

    One alone stays as it is.
    """
    return linked(placed(layers, hardware), hardware)


def placed(layers: Sequence[Joint], hardware: Hardware) -> list[Joint]:
    """The layers, each in words of its own."""
    places = _places([each.program for each in layers], hardware.capacity_words)
    return [each._replace(program=each.at(first)) for each, first in zip(layers, places, strict=True)]


def linked(layers: Sequence[Joint], hardware: Hardware, stay: Collection[str] = ()) -> Program:
    """One Program of layers that have their places; tensors of names in `stay` are read where others have left them."""
    if len(layers) == 1:
        return layers[0].program
    handed = [replace(each, stays=each.tensor in stay) for each in _handed(layers)]
    waits = Waits(hardware, {each.tensor: each for each in handed})
    programs = []
    for name, program, *_ in layers:
        programs.append(_shifted(program, Shift(name, waits.steps_before)))
        waits.join(programs[-1])
    steps, numbers = waits.in_order()
    return Program(
        tensors=tuple(each for program in programs for each in program.tensors),
        buffers=tuple(each for program in programs for each in program.buffers),
        steps=steps,
        word_fill=programs[0].word_fill,
        constants=tuple(each for program in programs for each in program.constants),
        word_cycles=max((each.word_cycles for each in programs if each.streams), default=0),
        derived=tuple(each for program in programs for each in program.derived),
        doubles=any(each.doubles for each in programs),
        layers=numbers,
        handed=tuple(handed),
    )


def _places(programs: Sequence[Program], capacity: int) -> Iterator[int]:
    """The first word of each: behind the layer ahead where there is room, else at the beginning, or as far from the
    layer ahead as can be.
    """
    first = stop = 0
    for words in (program.words for program in programs):
        other = 0 if first else capacity - words
        first = stop if stop + words <= capacity else other
        stop = first + words
        yield first


def _shifted(program: Program, by: Shift) -> Program:
    """What a Program is among others; its layer's name stands before those of its tensors."""
    return replace(
        program,
        tensors=tuple(each.of_layer(by.layer) for each in program.tensors),
        buffers=tuple(replace(each, tensor=f"{by.layer}.{each.tensor}") for each in program.buffers),
        steps=tuple(each.shifted(by) for each in program.steps),
        constants=tuple(replace(each, tensor=f"{by.layer}.{each.tensor}") for each in program.constants),
        derived=tuple(
            replace(each, tensor=f"{by.layer}.{each.tensor}", operand=f"{by.layer}.{each.operand}")
            for each in program.derived
        ),
    )


def _handed(layers: Sequence[Joint]) -> Iterator[Handed]:
    """What layers read of those before."""
    before: dict[str, Tensor] = {}
    for name, program, reads, *_ in layers:
        for tensor, (names, direct, placed) in reads.items():
            made, mine = [before[each] for each in names if each in before], program.tensor(tensor)
            same = direct and len(names) == len(made) == 1 and alike(mine, made[0])
            placed = (placed or same) and all(each.shape == mine.shape for each in made)
            if made:
                yield Handed(f"{name}.{tensor}", tuple(each.name for each in made), same, placed)
        before[name] = program.tensor(OFMAP).of_layer(name)


def alike(one: Tensor, other: Tensor) -> bool:
    """Whether one has the elements of the other, in the same words."""
    return (one.shape, one.number_bytes, one.scale) == (other.shape, other.number_bytes, 1)
