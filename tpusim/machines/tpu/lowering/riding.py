"""What is fused to an op of the array rides on its results: they are stored when that is done, and not before.

An addition begins the sums of a block: the other tensor is brought to where they are to stand, and the first pass adds
to it. A bias is a number of a column beside its weights: all of them are brought once, and the last pass of a block
loads those of its columns. An activation ends the sums: the last pass finishes its results on their way to the vector
memory.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cached_property, partial
from typing import Any

from tpusim.base.errors import CapacityError, UnsuitableError
from tpusim.machines.tpu.description import Hardware
from tpusim.machines.tpu.lowering.drafts import Draft
from tpusim.machines.tpu.lowering.tiling import col_folds
from tpusim.machines.tpu.program.explanation import Lowered, Planned
from tpusim.machines.tpu.program.passes import Finish
from tpusim.machines.tpu.program.program import Program
from tpusim.machines.tpu.program.tensor import Along, Part, Tensor
from tpusim.machines.tpu.schedule.link import buffers, link
from tpusim.machines.tpu.schedule.units import (
    Act,
    Area,
    Bias,
    Key,
    Moves,
    Need,
    Pass,
    Piece,
    Policy,
    Touch,
    Unit,
    Units,
)
from tpusim.memory.layout import whole_bursts
from tpusim.network.ops import Fused, Op
from tpusim.network.ops.fused import BIAS, OTHER
from tpusim.network.ops.op import OFMAP

_NOT_SO = (
    "its outputs are not what passes leave behind, so that nothing can ride on them; leave fusion out, by "
    "sequencer.fusion=none"
)


def riding(draft: Draft, layer: Fused, hardware: Hardware) -> Draft:
    """The draft of a layer's core, and what is fused to it.

    Raises UnsuitableError where what is fused takes a function. So does the draft where outputs are made otherwise
    than by passes; CapacityError where there is no room for biases.
    """
    if not all(each.exact for each in layer.finish):
        raise UnsuitableError(
            "what takes a function, such as tanh, does not ride on results; leave it out of the fusion"
        )

    def finish(program: Program) -> Lowered:
        program, told = draft.finish(program)
        words = f"{' and '.join(layer.fused)} ride on results"
        return program, replace(told, aspects={**told.aspects, "fused": words})

    return replace(draft, make=lambda: _fitting(Riding(draft.units, layer, hardware), hardware), finish=finish)


def _fitting(units: Riding, hardware: Hardware) -> Riding:
    if units.layer.bias:
        *_, biases = buffers(units, link(units))
        if (stop := biases.base + biases.words) > hardware.capacity_words:
            raise CapacityError(
                f"its biases take {biases.words} words beside the {biases.base} of a lane, which has "
                f"{hardware.capacity_words}; set vector_memory.capacity to at least {stop * hardware.word_bytes} B, "
                "or sequencer.fusion to none"
            )
    return units


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


class Riding(Units):
    """The units of a layer's core, whose sums begin with another tensor, take a bias, and are finished."""

    def __init__(self, core: Units, layer: Fused, hardware: Hardware) -> None:
        self.core, self.layer, self.hardware = core, layer, hardware
        self.word_fill, self.intermediates = core.word_fill, core.intermediates
        self.strands, self.before = core.strands, core.before
        self._finish = tuple(Finish(each.operation, each.coefficients(1)) for each in layer.finish)
        self._leaving: dict[Key, Unit] = {}
        """By what it leaves, the unit that does so."""

    @cached_property
    def tensors(self) -> tuple[Tensor, ...]:
        """Those of the core, and what is added."""
        other = replace(self._ofmap, name=OTHER)
        return *self.core.tensors, *((other,) if self.layer.adds else ()), *((self._bias,) if self.layer.bias else ())

    @cached_property
    def more(self) -> Mapping[str, Any]:
        return self.core.more

    @cached_property
    def areas(self) -> tuple[Area, ...]:
        """Those of the core; what is added comes to the sums as soon as their slot is free, biases once."""
        first = next(unit for unit in self.core.units() if unit.leaves >= 0)
        left = first.needs[first.leaves].area
        cut = self._others if self.layer.adds else None
        areas = (replace(each, cut=cut, late=True) if each.name == left else each for each in self.core.areas)
        if not self.layer.bias:
            return (*areas,)
        lanes = max(map(len, self._words))
        return *areas, Area("bias", BIAS, len(self._words), 1, lanes, self._biases, late=True)

    @cached_property
    def policy(self) -> Policy:
        """What is added comes behind all else."""
        own, brought = self.core.policy, {each.name for each in self.areas if each.late}
        return own._replace(order=(*own.order, *sorted(brought - {*own.order}, reverse=True)))

    def units(self) -> Iterator[Unit]:
        for unit in self.core.units():
            if unit.leaves >= 0:
                self._leaving[unit.needs[unit.leaves].key] = unit
                unit = unit._replace(needs=(*unit.needs, Need("bias", 0))) if self.layer.bias else unit
            yield unit

    def counted(self) -> Planned | None:
        return self.core.counted()

    def acts(self, unit: Unit, bases: Sequence[int]) -> Iterator[Act]:
        """Those of the core; where a unit leaves sums, the last pass of each finishes them."""
        biased = unit.leaves >= 0 and self.layer.bias
        acts = [*self.core.acts(unit, bases[:-1] if biased else bases)]
        last = {act.result: act for act in acts if isinstance(act, Pass)} if unit.leaves >= 0 else {}
        bias = Bias(Touch(len(bases) - 1), bases[-1] + self._words[self.core.channels(unit)]) if biased else None
        for act in acts:
            if not isinstance(act, Pass):
                raise UnsuitableError(_NOT_SO)
            yield act._replace(finish=self._finish, bias=bias) if last.get(act.result) is act else act

    def channels(self, unit: Unit) -> tuple[int, ...]:
        return self.core.channels(unit)

    def spill(self, unit: Unit, base: int) -> Moves:
        return self.core.spill(unit, base)

    # ---- what is added

    @property
    def _ofmap(self) -> Tensor:
        return next(each for each in self.core.tensors if each.name == OFMAP)

    @property
    def _bias(self) -> Tensor:
        return Tensor(BIAS, (self._ofmap.shape[0], 1, 1, 1))

    @cached_property
    def _words(self) -> Mapping[tuple[int, ...], int]:
        """By the channels of its lanes, the number of each word of biases."""
        found: dict[tuple[int, ...], int] = {}
        for unit in self.core.units():
            if unit.leaves >= 0:
                found.setdefault(self.core.channels(unit), len(found))
        if () in found:
            raise UnsuitableError(_NOT_SO)
        return found

    def _others(self, key: Key, gaps: int, grows: bool) -> list[Piece]:
        return [Piece(0, (0,), partial(self._other, self._leaving[key]))]

    def _other(self, unit: Unit, base: int) -> Iterator[Moves]:
        """What is added to the sums that a unit leaves."""
        left = self.core.spill(unit, base)
        yield left._replace(tensor=replace(left.tensor, name=OTHER))

    def _biases(self, key: Key, gaps: int, grows: bool) -> list[Piece]:
        return [Piece(0, (0,), self._all_biases)]

    def _all_biases(self, base: int) -> Iterator[Moves]:
        parts = tuple(
            Part(base + number, (0,), (Along(0, channels),), (Along(1, range(1)),), 1)
            for channels, number in self._words.items()
        )
        moved = whole_bursts(self._bias.bytes(self.hardware.element_bytes), self.hardware.hbm.burst_bytes)
        yield Moves(self._bias, parts, moved)
