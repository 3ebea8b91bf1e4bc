"""What is fused to an op of the array rides on its results: they are stored when that is done, and not before.

An addition begins the sums of a block: the other tensor is brought to where they are to stand, and the first pass adds
to it. An activation ends them: the last pass of a block finishes its results on their way to the vector memory.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from tpusim.base.errors import UnsuitableError
from tpusim.machines.tpu.program.explanation import Lowered
from tpusim.machines.tpu.program.passes import Finish, Stream
from tpusim.machines.tpu.program.program import Program
from tpusim.machines.tpu.program.step import Step
from tpusim.machines.tpu.program.tensor import Part
from tpusim.machines.tpu.program.transfers import Fill, Spill
from tpusim.network.ops import Fused
from tpusim.network.ops.fused import OTHER
from tpusim.network.ops.op import OFMAP

_NOT_SO = (
    "its outputs are not what passes leave behind, so that nothing can ride on them; leave fusion out, by "
    "sequencer.fusion=none"
)


class _Sum(NamedTuple):
    """The passes, first and last, that add up in the same words until these are spilled."""

    first: int
    last: int


def riding(lowered: Lowered, layer: Fused) -> Lowered:
    """The Program of the layer's core, and what is fused to it.

    Raises:
        UnsuitableError: its outputs are made otherwise than by passes, or what is fused takes a function.
    """
    program, told = lowered
    if not all(each.exact for each in layer.finish):
        raise UnsuitableError(
            "what takes a function, such as tanh, does not ride on results; leave it out of the fusion"
        )
    spilled = _Spilled.of(program)
    finish = tuple(Finish(each.operation, each.coefficients(1)) for each in layer.finish)
    steps = list(program.steps)
    for each in spilled.sums.values():
        for one in each:
            steps[one.last] = _stream(steps, one.last, finish=finish)
    finished = replace(program, steps=tuple(steps))
    fused = _added(finished, spilled) if layer.adds else finished
    words = f"{' and '.join(layer.text.split(' + ')[1:])} ride on results"
    return fused, replace(told, aspects={**told.aspects, "fused": words})


@dataclass
class _Spilled:
    """By spill of the ofmap, the sums that it stores."""

    sums: dict[int, list[_Sum]] = field(default_factory=dict)

    @classmethod
    def of(cls, program: Program) -> _Spilled:
        ofmap = program.tensor(OFMAP)
        if ofmap.scale != 1 or ofmap.lost or program.vectors:
            raise UnsuitableError(_NOT_SO)
        found, open_sums = cls(), dict[int, _Sum]()
        for index, step in enumerate(program.steps):
            if isinstance(step, Stream):
                first = open_sums[step.result_base].first if step.accumulate else index
                open_sums[step.result_base] = _Sum(first, index)
            elif isinstance(step, Spill) and step.tensor == ofmap:
                mine = [base for base in open_sums if any(_holds(part, base) for part in step.parts)]
                if not mine or any(part.feed for part in step.parts):
                    raise UnsuitableError(_NOT_SO)
                found.sums[index] = [open_sums.pop(base) for base in mine]
        return found


def _holds(part: Part, base: int) -> bool:
    return part.base <= base < part.base + part.words


def _stream(steps: list[Step], index: int, **changed: object) -> Stream:
    step = steps[index]
    assert isinstance(step, Stream)
    return replace(step, **changed)  # type: ignore[arg-type]


def _added(program: Program, spilled: _Spilled) -> Program:
    """For what each spill stores, a fill of the other tensor into the same words, as soon as these are free."""
    other = replace(program.tensor(OFMAP), name=OTHER)
    steps, fills = list(program.steps), list[_Ahead]()
    for index, sums in spilled.sums.items():
        spill = program.steps[index]
        assert isinstance(spill, Spill)
        firsts = [_stream(steps, one.first, accumulate=True) for one in sums]
        freed = sorted({each for one in firsts for each in one.after if isinstance(steps[each], Spill)})
        fill = Fill(tuple(freed), other, spill.parts, spill.hbm_bytes, regions=spill.regions)
        begun = fills[0].place if fills else min(one.preload for one in firsts)
        fills.append(_Ahead(freed[-1] + 1 if freed else begun, fill, frozenset(one.first for one in sums)))
        for one, first in zip(sums, firsts, strict=True):
            steps[one.first] = first
    return replace(program, tensors=(*program.tensors, other), steps=_inserted(steps, fills))


class _Ahead(NamedTuple):
    """A fill that comes before the step at `place`, and the streams that wait for it."""

    place: int
    fill: Fill
    waiting: frozenset[int]


def _inserted(steps: Sequence[Step], fills: Sequence[_Ahead]) -> tuple[Step, ...]:
    """The steps with these among them, all by their new numbers."""
    inserted = sorted(fills, key=lambda each: each.place)
    places = [each.place for each in inserted]
    number = {index: index + bisect_right(places, index) for index in range(len(steps))}
    waits = {stream: each.place + before for before, each in enumerate(inserted) for stream in each.waiting}
    found: dict[int, Step] = {}
    for before, each in enumerate(inserted):
        found[each.place + before] = each.fill.renumbered(number)
    for index, step in enumerate(steps):
        moved = step.renumbered(number)
        found[number[index]] = replace(moved, after=(*moved.after, waits[index])) if index in waits else moved
    return tuple(found[index] for index in range(len(found)))
