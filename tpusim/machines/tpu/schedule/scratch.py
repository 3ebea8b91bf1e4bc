"""Which tensors lie in the scratch memory, and where.

What layers make for one another, or for themselves, lies there instead of in HBM, as far as there is room. What is
left of the room holds operands that are filled several times: prefetches bring them from HBM once.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple, TypeAlias

from tpusim.machines.tpu.description import Hardware
from tpusim.machines.tpu.program.check import meet
from tpusim.machines.tpu.program.program import Program
from tpusim.machines.tpu.program.steps import Step
from tpusim.machines.tpu.program.tensor import Tensor
from tpusim.machines.tpu.program.transfers import Inbound, Prefetch, Transfer
from tpusim.machines.tpu.schedule.joined import Joint, alike
from tpusim.network.ops.op import OFMAP

AHEAD = 2
"""Transfers between a prefetch and the fill that reads what it brings: one would find its data still on the way."""

_Places: TypeAlias = dict[tuple[int, str], int]
"""By layer and tensor, the first byte in the scratch memory."""


class _Life(NamedTuple):
    """A tensor, by the `layers` that use it and what each calls it; it takes `size` bytes from the first of these
    layers to the last, and keeps `saved` bytes off the bus of HBM.
    """

    layers: tuple[tuple[int, str], ...]
    size: int
    saved: int

    @property
    def span(self) -> range:
        return range(self.layers[0][0], self.layers[-1][0] + 1)

    @property
    def worth(self) -> float:
        return self.saved / (self.size * len(self.span))


def in_scratch(layers: Sequence[Joint], hardware: Hardware, stay: Collection[str] = ()) -> tuple[Joint, ...]:
    """Layers that follow one another, with what they make and only they read in the scratch memory; what saves the most
    for its room goes first. Tensors of full names in `stay` are read where they stay on chip, and never filled.
    """
    if hardware.scratch_memory is None:
        return tuple(layers)
    lives = sorted((*_own(layers, hardware), *_outcomes(layers, hardware, stay)), key=lambda each: -each.worth)
    places = _placed(lives, hardware.scratch_memory.capacity_bytes)
    return tuple(
        joint._replace(
            program=_lying(joint.program, {name: at for (layer, name), at in places.items() if layer == number})
        )
        for number, joint in enumerate(layers)
    )


def _own(layers: Sequence[Joint], hardware: Hardware) -> Iterator[_Life]:
    """What a layer writes and reads again itself."""
    for number, (_, program, *_) in enumerate(layers):
        for name in sorted(program.intermediates - {OFMAP}):
            yield _life(layers, [(number, name)], hardware)


def _outcomes(layers: Sequence[Joint], hardware: Hardware, stay: Collection[str]) -> Iterator[_Life]:
    """What layers make and spill, where all who want it are layers that read it element for element."""
    for maker, (name, program, _, leaves, *_) in enumerate(layers):
        made = program.tensor(OFMAP)
        wanted = [(at, tensor, read) for at, joint in enumerate(layers) for tensor, read in joint.reads.items()
                  if name in read.names]  # fmt: skip
        same = all(
            read.direct and len(read.names) == 1 and alike(layers[at].program.tensor(tensor), made)
            and f"{layers[at].name}.{tensor}" not in stay
            for at, tensor, read in wanted
        )  # fmt: skip
        if wanted and same and not leaves:
            yield _life(layers, [(maker, OFMAP), *((at, tensor) for at, tensor, _ in wanted)], hardware)


def _life(layers: Sequence[Joint], names: list[tuple[int, str]], hardware: Hardware) -> _Life:
    first, tensor = names[0]
    size = len(layers[first].program.tensor(tensor).scratch_bytes(hardware.element_bytes))
    moved = sum(
        step.hbm_bytes
        for at, name in names
        for step in layers[at].program.steps
        if isinstance(step, Transfer) and step.tensor.name == name
    )
    return _Life(tuple(names), size, moved)


def _placed(lives: Sequence[_Life], capacity: int) -> _Places:
    """Each where it meets none of those before it; what has no room is left out."""
    taken: list[tuple[range, range]] = []
    places: _Places = {}
    for each in lives:
        there = [area for area, span in taken if meet(span, each.span)]
        starts = (start for start in sorted({0, *(area.stop for area in there)}) if start + each.size <= capacity)
        free = (at for at in starts if not any(meet(range(at, at + each.size), area) for area in there))
        first = next(free, None)
        if first is not None:
            taken.append((range(first, first + each.size), each.span))
            places.update(dict.fromkeys(each.layers, first))
    return places


def _lying(program: Program, places: Mapping[str, int]) -> Program:
    """A Program with tensors in the scratch memory, by their names."""
    if not places:
        return program
    tensors = {each.name: replace(each, scratch=places.get(each.name, each.scratch)) for each in program.tensors}
    steps = (
        replace(each, tensor=tensors[each.tensor.name]) if isinstance(each, Transfer) else each
        for each in program.steps
    )
    return replace(program, tensors=tuple(tensors.values()), steps=tuple(steps))


# ---- operands


def prefetched(program: Program, hardware: Hardware, ahead: int = AHEAD) -> Program:
    """A Program, with operands that it fills several times in the scratch memory, as far as there is room.

    What is filled once still comes from HBM itself.
    """
    if hardware.scratch_memory is None:
        return program
    taken = (each.scratch_bytes(hardware.element_bytes).stop for each in program.tensors if each.scratch is not None)
    first = max(taken, default=0)
    copies: dict[str, Tensor] = {}
    for name in sorted(again := _again(program), key=lambda name: -again[name] / program.tensor(name).size):
        copy = replace(program.tensor(name), name=f"{name} in scratch memory", scratch=first)
        stop = copy.scratch_bytes(hardware.element_bytes).stop
        if stop <= hardware.scratch_memory.capacity_bytes:
            copies[name], first = copy, stop
    return _bringing(program, copies, ahead)


def _again(program: Program) -> dict[str, int]:
    """By operand, the bytes of fills that bring what others have brought before."""
    seen = set[object]()
    found: defaultdict[str, int] = defaultdict(int)
    for step in program.steps:
        if isinstance(step, Inbound) and step.tensor.name not in program.makers:
            if (held := _held(step)) in seen:
                found[step.tensor.name] += step.hbm_bytes
            seen.add(held)
    return found


def _held(step: Transfer) -> object:
    """What a transfer brings."""
    return step.tensor.name, step.regions, tuple((part.lane, part.items) for part in step.parts)


def _bringing(program: Program, copies: Mapping[str, Tensor], ahead: int) -> Program:
    """A Program in which `copies` in the scratch memory stand for operands where fills bring the same again."""
    if not copies:
        return program
    fills: defaultdict[object, list[int]] = defaultdict(list)
    for at, step in enumerate(program.steps):
        if isinstance(step, Inbound) and step.tensor.name in copies and step.hbm_bytes:
            fills[_held(step)].append(at)
    transfers = [at for at, step in enumerate(program.steps) if isinstance(step, Transfer)]
    turn = {at: number for number, at in enumerate(transfers)}
    due: defaultdict[int, list[list[int]]] = defaultdict(list)
    for readers in fills.values():
        if len(readers) > 1:
            due[transfers[max(0, turn[readers[0]] - ahead)]].append(readers)
    steps: list[Step] = []
    places: dict[int, int] = {}
    brought: dict[int, int] = {}
    for at, step in enumerate(program.steps):
        for readers in due[at]:
            brought.update(dict.fromkeys(readers, len(steps)))
            fill = program.steps[readers[0]]
            assert isinstance(fill, Transfer)
            copy = copies[fill.tensor.name]
            steps.append(Prefetch((), fill.tensor, fill.parts, fill.hbm_bytes, copy, regions=fill.regions))
        places[at] = len(steps)
        step = step.renumbered(places)
        if at in brought and isinstance(step, Transfer):
            step = replace(step, tensor=copies[step.tensor.name], after=(*step.after, brought[at]))
        steps.append(step)
    return replace(program, tensors=(*program.tensors, *copies.values()), steps=tuple(steps))
