"""Which tensors lie in the scratch memory, and where.

What layers make for one another, or for themselves, lies there instead of in HBM, as far as there is room. What is
left of the room holds operands that are filled several times: prefetches bring them from HBM once.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import NamedTuple, TypeAlias

from tpusim.machines.tpu.description import Hardware
from tpusim.machines.tpu.program.program import Program
from tpusim.machines.tpu.program.steps import Step
from tpusim.machines.tpu.program.transfers import Inbound, Prefetch, Tensor, Transfer
from tpusim.machines.tpu.schedule.joined import FullError, Joint, WordRoom, alike
from tpusim.network.ops.op import OFMAP

AHEAD = 2
"""Transfers between a prefetch and the fill that reads what it brings: one would find its data still on the way."""


class _Life(NamedTuple):
    """A tensor, by the layers that use it and what each calls it: it takes `size` bytes while layers of `span` run, and
    keeps the more off the bus of HBM for its room the more it is `worth`.
    """

    users: list[tuple[int, str]]
    size: int
    span: range
    worth: float


def in_scratch(layers: Sequence[Joint], hardware: Hardware, stay: Collection[str] = ()) -> tuple[Joint, ...]:
    """Layers that follow one another, with what they make and only they read in the scratch memory; what saves the most
    for its room goes first. Tensors of full names in `stay` are read where they stay on chip, and never filled.
    """
    if hardware.scratch_memory is None:
        return tuple(layers)
    room, places = WordRoom(hardware.scratch_memory.capacity_bytes), defaultdict[int, dict[str, int]](dict)
    lives: list[_Life] = []
    for users in _users(layers, stay):
        (first, tensor), (last, _) = users[0], users[-1]
        size, span = (
            len(layers[first].program.tensor(tensor).scratch_bytes(hardware.element_bytes)),
            range(first, last + 1),
        )
        moved = sum(
            step.hbm_bytes
            for at, name in users
            for step in layers[at].program.steps
            if isinstance(step, Transfer) and step.tensor.name == name
        )
        lives.append(_Life(users, size, span, moved / (size * len(span))))
    for life in sorted(lives, key=lambda each: -each.worth):
        starts = 0, *sorted(place.stop for place in room.taken(life.span))
        with suppress(FullError):
            first = room.place(starts, life.size, life.span)
            for at, name in life.users:
                places[at][name] = first
    return tuple(joint._replace(program=_lying(joint.program, places[at])) for at, joint in enumerate(layers))


def _users(layers: Sequence[Joint], stay: Collection[str]) -> Iterator[list[tuple[int, str]]]:
    """The layers that use a tensor, each with what it calls the tensor: the layer that makes it, and, where all who
    want it are layers that read it element for element, these too.
    """
    for maker, (name, program, _, leaves, *_) in enumerate(layers):
        yield from ([(maker, own)] for own in sorted(program.intermediates - {OFMAP}))
        made = program.tensor(OFMAP)
        wanted = [(at, tensor, read) for at, joint in enumerate(layers) for tensor, read in joint.reads.items()
                  if name in read.names]  # fmt: skip
        same = all(
            read.direct and len(read.names) == 1 and alike(layers[at].program.tensor(tensor), made)
            and f"{layers[at].name}.{tensor}" not in stay
            for at, tensor, read in wanted
        )  # fmt: skip
        if wanted and same and not leaves:
            yield [(maker, OFMAP), *((at, tensor) for at, tensor, _ in wanted)]


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


_Fills: TypeAlias = list[tuple[int, Inbound]]
"""Some that bring the same, by their numbers."""


def prefetched(program: Program, hardware: Hardware, ahead: int = AHEAD) -> Program:
    """A Program, with operands that it fills several times in the scratch memory, as far as there is room.

    What is filled once still comes from HBM itself.
    """
    if hardware.scratch_memory is None:
        return program
    taken = (each.scratch_bytes(hardware.element_bytes).stop for each in program.tensors if each.scratch is not None)
    first, again, copies = max(taken, default=0), _again(program), list[Tensor]()
    due: defaultdict[int, list[tuple[Tensor, _Fills]]] = defaultdict(list)
    transfers = [at for at, step in enumerate(program.steps) if isinstance(step, Transfer)]
    # The bytes that have been brought before.
    spared = {name: sum(step.hbm_bytes for fills in each for _, step in fills[1:]) for name, each in again.items()}
    for name in sorted(again, key=lambda name: -spared[name] / program.tensor(name).size):
        copy = replace(program.tensor(name), name=f"{name} in scratch memory", scratch=first)
        stop = copy.scratch_bytes(hardware.element_bytes).stop
        if stop <= hardware.scratch_memory.capacity_bytes:
            copies.append(copy)
            first = stop
            for fills in again[name]:
                earliest, _ = fills[0]
                due[transfers[max(0, bisect_left(transfers, earliest) - ahead)]].append((copy, fills))
    return replace(program, tensors=(*program.tensors, *copies), steps=_bringing(program, due)) if copies else program


def _again(program: Program) -> dict[str, list[_Fills]]:
    """By operand, the fills that bring the same, where there are several."""
    found: defaultdict[object, _Fills] = defaultdict(list)
    for at, step in enumerate(program.steps):
        if isinstance(step, Inbound) and step.hbm_bytes and step.tensor.name not in program.makers:
            held = step.tensor.name, step.regions, tuple((part.lane, part.items) for part in step.parts)
            found[held].append((at, step))
    again: defaultdict[str, list[_Fills]] = defaultdict(list)
    for fills in found.values():
        if len(fills) > 1:
            again[fills[0][1].tensor.name].append(fills)
    return again


def _bringing(program: Program, due: Mapping[int, Sequence[tuple[Tensor, _Fills]]]) -> tuple[Step, ...]:
    """The steps, some with prefetches that are `due` ahead of them: of a copy, and the fills that read it."""
    steps: list[Step] = []
    places: dict[int, int] = {}
    near: dict[int, tuple[Tensor, int]] = {}
    for at, step in enumerate(program.steps):
        for copy, fills in due.get(at, ()):
            _, fill = fills[0]
            near |= {number: (copy, len(steps)) for number, _ in fills}
            steps.append(Prefetch((), fill.tensor, fill.parts, fill.hbm_bytes, copy, regions=fill.regions))
        places[at] = len(steps)
        step = step.renumbered(places)
        if at in near and isinstance(step, Transfer):
            copy, brought = near[at]
            step = replace(step, tensor=copy, after=(*step.after, brought))
        steps.append(step)
    return tuple(steps)
