"""What is fused to an op of the array rides on its results: they are stored when that is done, and not before.

An addition begins the sums of a block: the other tensor is brought to where they are to stand, and the first pass adds
to it. A bias is a number of a column beside its weights: all of them are brought once, and the last pass of a block
loads those of its columns. An activation ends the sums: the last pass finishes its results on their way to the vector
memory.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from math import prod
from typing import NamedTuple

import numpy as np

from tpusim.base.errors import CapacityError, UnsuitableError
from tpusim.machines.tpu.description import Hardware
from tpusim.machines.tpu.lowering.tiling import col_folds
from tpusim.machines.tpu.program.explanation import Lowered
from tpusim.machines.tpu.program.passes import Finish, Preload, Stream
from tpusim.machines.tpu.program.program import Buffer, Program
from tpusim.machines.tpu.program.step import Step
from tpusim.machines.tpu.program.tensor import Along, Part, Tensor
from tpusim.machines.tpu.program.transfers import Fill, Spill
from tpusim.memory.layout import whole_bursts
from tpusim.network.ops import Fused, Op
from tpusim.network.ops.fused import BIAS, OTHER
from tpusim.network.ops.op import OFMAP

_NOT_SO = (
    "its outputs are not what passes leave behind, so that nothing can ride on them; leave fusion out, by "
    "sequencer.fusion=none"
)


class _Sum(NamedTuple):
    """The passes, first and last, that add up in the same words until these are spilled."""

    first: int
    last: int


def riding(lowered: Lowered, layer: Fused, hardware: Hardware) -> Lowered:
    """The Program of the layer's core, and what is fused to it.

    Raises:
        CapacityError: there is no room for biases.
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
    ahead = _added(steps, spilled, program) if layer.adds else []
    biases = _Biases.of(program, spilled) if layer.bias else _Biases(program.words)
    ahead += biases.load(steps, program, hardware)
    tensors, buffers = (*program.tensors, *(each.fill.tensor for each in ahead)), (*program.buffers, *biases.buffers)
    fused = replace(program, tensors=tuple({}.fromkeys(tensors)), buffers=buffers, steps=_inserted(steps, ahead))
    return fused, replace(told, aspects={**told.aspects, "fused": _in_words(layer)})


def bias_words(layer: Op, batch: int, hardware: Hardware) -> int:
    """Words of a lane that the biases of a layer take at most: one for the channels of a pass."""
    if not isinstance(layer, Fused) or not layer.bias:
        return 0
    conv, _ = layer.convolution(batch)
    return conv.groups * len(col_folds(conv.out_channels // conv.groups, hardware))


def spared(layer: Op, batch: int, hardware: Hardware) -> Hardware:
    """The machine without those words: so much memory is left to the lowering of the layer's core."""
    if not (words := bias_words(layer, batch, hardware)):
        return hardware
    memory = hardware.vector_memory
    left = max(1, memory.capacity_bytes - words * hardware.word_bytes)
    return hardware.model_copy(update={"vector_memory": memory.model_copy(update={"capacity_bytes": left})})


def _in_words(layer: Fused) -> str:
    return f"{' and '.join(layer.fused)} ride on results"


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


@dataclass
class _Biases:
    """The words with biases, from `base` on: by the channels of their lanes, where they stand; and by preload."""

    base: int
    words: dict[tuple[int, ...], int] = field(default_factory=dict)
    loads: dict[int, int] = field(default_factory=dict)

    @classmethod
    def of(cls, program: Program, spilled: _Spilled) -> _Biases:
        found = cls(program.words)
        for index, sums in spilled.sums.items():
            spill = program.steps[index]
            assert isinstance(spill, Spill)
            for one in sums:
                stream = program.steps[one.last]
                assert isinstance(stream, Stream)
                part = next(part for part in spill.parts if _holds(part, stream.result_base))
                word = found.words.setdefault(_channels(part, stream), found.base + len(found.words))
                found.loads[stream.preload] = word
        return found

    @property
    def buffers(self) -> tuple[Buffer, ...]:
        """Where they stand."""
        lanes = max(map(len, self.words), default=0)
        return (Buffer(BIAS, self.base, len(self.words), lanes),) if self.words else ()

    def load(self, steps: list[Step], program: Program, hardware: Hardware) -> list[_Ahead]:
        """Have the preloads among `steps` load them, once they are filled: as soon as the first weights are.

        Raises CapacityError where they have no room.
        """
        if not self.words:
            return []
        if (stop := self.base + len(self.words)) > hardware.capacity_words:
            raise CapacityError(
                f"its biases take {len(self.words)} words beside the {self.base} of a lane, which has "
                f"{hardware.capacity_words}; set vector_memory.capacity to at least {stop * hardware.word_bytes} B, or "
                "sequencer.fusion to none"
            )
        for preload, word in self.loads.items():
            steps[preload] = _preload(steps, preload, bias=word)
        first = min(index for index, step in enumerate(steps) if isinstance(step, Preload))
        return [_Ahead(first, self._fill(program.tensor(OFMAP), hardware), frozenset(self.loads))]

    def _fill(self, ofmap: Tensor, hardware: Hardware) -> Fill:
        tensor = Tensor(BIAS, (ofmap.shape[0], 1, 1, 1))
        parts = (
            Part(word, (0,), (Along(0, channels),), (Along(1, range(1)),), 1) for channels, word in self.words.items()
        )
        moved = whole_bursts(tensor.bytes(hardware.element_bytes), hardware.hbm.burst_bytes)
        return Fill((), tensor, tuple(parts), moved)


def _channels(part: Part, stream: Stream) -> tuple[int, ...]:
    """The output channel of each lane in the words of a pass, where a spill finds them. Raises UnsuitableError."""
    counts = [len(each.coordinates) for each in part.items]
    first, stop = ((stream.result_base - part.base + word) * part.per_word for word in (0, stream.words))
    at = np.unravel_index(np.arange(first, min(stop, prod(counts))), counts)
    along = [np.array(each.coordinates)[count] for each, count in zip(part.items, at, strict=True) if not each.axis]
    items = sum(along, np.zeros(1, np.int64))
    if (items != items[0]).any():
        raise UnsuitableError(_NOT_SO)
    lanes = sum((np.array(each.coordinates) for each in part.lane if not each.axis), np.zeros(part.lanes, np.int64))
    return tuple((lanes + items[0]).tolist())


def _preload(steps: list[Step], index: int, **changed: object) -> Preload:
    step = steps[index]
    assert isinstance(step, Preload)
    return replace(step, **changed)  # type: ignore[arg-type]


def _added(steps: list[Step], spilled: _Spilled, program: Program) -> list[_Ahead]:
    """For what each spill stores, a fill of the other tensor into the same words, as soon as these are free; the first
    passes among `steps` add to them.
    """
    other, fills = replace(program.tensor(OFMAP), name=OTHER), list[_Ahead]()
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
    return fills


class _Ahead(NamedTuple):
    """A fill that comes before the step at `place`, and the streams or preloads that wait for it."""

    place: int
    fill: Fill
    waiting: frozenset[int]


def _inserted(steps: Sequence[Step], fills: Sequence[_Ahead]) -> tuple[Step, ...]:
    """The steps with these among them, all by their new numbers."""
    inserted = sorted(fills, key=lambda each: each.place)
    places = [each.place for each in inserted]
    number = {index: index + bisect_right(places, index) for index in range(len(steps))}
    waits = {index: each.place + before for before, each in enumerate(inserted) for index in each.waiting}
    found: dict[int, Step] = {}
    for before, each in enumerate(inserted):
        found[each.place + before] = each.fill.renumbered(number)
    for index, step in enumerate(steps):
        moved = step.renumbered(number)
        found[number[index]] = replace(moved, after=(*moved.after, waits[index])) if index in waits else moved
    return tuple(found[index] for index in range(len(found)))
